// Results of all-reduces that are hashed, and those that are not: the whole shim around a stand-in for Gloo.
// verification_test (an empty folder for rings; LD_PRELOAD, FALCON_RING_DIR and FALCON_CONTROL are set by CTest).
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/checking.h"
#include "common/control_file.h"
#include "common/hash.h"
#include "standins/standin_gloo.h"

namespace {

const gloo::StandinContext kWorld{1, 4, 2};
const gloo::StandinContext kLonely{0, 1, 2};

struct Job {
  View ring;
  falcon::ControlHeader* control;
  uint64_t seen = 0;  // records
  uint32_t tag = 100;

  // The records of verified results since the last call of this.
  std::vector<falcon::Record> verified() {
    std::vector<falcon::Record> found;
    for (const uint64_t head = ring.header->head.load(); seen < head; ++seen) {
      if (ring.slots[seen].kind == falcon::Kind::kVerified) found.push_back(ring.slots[seen]);
    }
    return found;
  }

  void reduce(const gloo::StandinContext& context, std::vector<float>* values) {
    gloo::StandinBuffer buffer{nullptr, values->data(), values->size() * sizeof(float)};
    gloo::allreduce(gloo::options(context, &buffer, sizeof(float), tag++));
  }
};

uint64_t hash_of(const falcon::Record& record) {
  return static_cast<uint64_t>(static_cast<uint32_t>(record.peer_or_root)) << 32U | record.group;
}

void known_hashes() {
  CHECK(falcon::hash_bytes("", 0) == 0xEF46DB3751D8E999ULL);
  CHECK(falcon::hash_bytes("a", 1) == 0xD24EC4F1A98C6E5BULL);
  CHECK(falcon::hash_bytes("abc", 3) == 0x44BC2CF5AD770999ULL);
  const std::string sentence = "Nobody inspects the spammish repetition";
  CHECK(falcon::hash_bytes(sentence.data(), sentence.size()) == 0xFBCEA83C8A378BF1ULL);
}

void nothing_is_hashed_unless_asked(Job* job) {
  std::vector<float> values(1000, 1.0F);
  for (int call = 0; call < 20; ++call) job->reduce(kWorld, &values);
  CHECK(job->verified().empty());
}

void each_result_is_hashed_when_each_is_asked_for(Job* job) {
  job->control->verify_every = 1;
  std::vector<float> values(1000, 1.0F);
  job->reduce(kWorld, &values);  // the first that is seen: whether tags tell calls apart is not known
  CHECK(job->verified().empty());
  job->reduce(kWorld, &values);
  values[617] = 1.5F;
  errno = ERANGE;
  job->reduce(kWorld, &values);
  CHECK(errno == ERANGE);
  const std::vector<falcon::Record> found = job->verified();
  CHECK(found.size() == 2);
  if (found.size() != 2) return;
  for (const falcon::Record& record : found) {
    CHECK(record.op == falcon::Op::kAllReduce && record.bytes == 4000 && record.comm == 1 && record.stream == 0);
    CHECK(record.flags == falcon::kSole && falcon::check_of(record) == record.check);
  }
  CHECK(found[0].comm_seq == job->tag - 2 && found[1].comm_seq == job->tag - 1);
  CHECK(hash_of(found[1]) == falcon::hash_bytes(values.data(), 4000));
  CHECK(hash_of(found[0]) != hash_of(found[1]));
}

void one_call_of_each_turn_is_chosen_at_changing_places(Job* job) {
  constexpr uint32_t kEvery = 16;
  job->control->verify_every = kEvery;
  std::vector<float> values(300, 2.0F);
  std::vector<uint32_t> turns(20, 0);
  std::vector<bool> places(kEvery, false);
  job->tag = 64 * kEvery;
  for (uint32_t call = 0; call < kEvery * turns.size(); ++call) job->reduce(kWorld, &values);
  for (const falcon::Record& record : job->verified()) {
    turns[(record.comm_seq - 64 * kEvery) / kEvery] += 1;
    places[record.comm_seq % kEvery] = true;
  }
  int different = 0;
  for (const uint32_t turn : turns) CHECK(turn == 1);
  for (const bool place : places) different += place ? 1 : 0;
  CHECK(different > 5);
}

void small_results_and_groups_of_one_are_left_out(Job* job) {
  job->control->verify_every = 1;
  std::vector<float> small(255, 1.0F);
  std::vector<float> values(1000, 1.0F);
  for (int call = 0; call < 3; ++call) job->reduce(kWorld, &small);
  for (int call = 0; call < 3; ++call) job->reduce(kLonely, &values);
  CHECK(job->verified().empty());
}

// A program that gives all calls one tag: they go by their number in the group.
void calls_without_tags_of_their_own_are_counted(Job* job) {
  const gloo::StandinContext context{2, 4, 2};
  std::vector<float> values(1000, 1.0F);
  for (int call = 0; call < 4; ++call) {
    job->tag = 7;
    job->reduce(context, &values);
  }
  const std::vector<falcon::Record> found = job->verified();
  CHECK(found.size() == 3);
  for (size_t i = 0; i < found.size(); ++i) CHECK(found[i].comm_seq == i + 1);
}

void a_second_group_of_the_same_shape_says_so(Job* job) {
  const gloo::StandinContext again{kWorld.rank, kWorld.size, 2};
  std::vector<float> values(1000, 1.0F);
  for (int call = 0; call < 2; ++call) job->reduce(again, &values);
  job->reduce(kWorld, &values);
  const std::vector<falcon::Record> found = job->verified();
  CHECK(found.size() == 2);
  if (found.size() != 2) return;
  CHECK(found[0].flags == 0 && found[0].comm != 1);
  CHECK(found[1].flags == 0 && found[1].comm == 1);
}

// A context of another shape at the same address is another communicator, and the one before is gone. The table keeps
// those that are gone as well, until it is full.
void what_is_forgotten_may_have_been_of_the_same_shape(Job* job) {
  constexpr int32_t kManySizes = 1100;  // more than the table has places
  std::vector<float> values(1000, 1.0F);
  std::vector<float> small(10, 1.0F);
  gloo::StandinContext context{1, 7, 2};
  for (int call = 0; call < 2; ++call) job->reduce(context, &values);
  const std::vector<falcon::Record> before = job->verified();
  CHECK(before.size() == 1 && before[0].flags == falcon::kSole);
  for (context.size = 100; context.size < 100 + kManySizes; ++context.size) job->reduce(context, &small);
  const gloo::StandinContext again{1, 7, 2};
  for (int call = 0; call < 2; ++call) job->reduce(again, &values);
  const std::vector<falcon::Record> found = job->verified();
  CHECK(found.size() == 1 && found[0].flags == 0);
}

void a_large_result_is_hashed_in_part(Job* job) {
  std::vector<float> values((80ULL << 20U) / sizeof(float), 1.0F);
  job->reduce(kWorld, &values);
  const std::vector<falcon::Record> found = job->verified();
  CHECK(found.size() == 1 && found[0].bytes == 64ULL << 20U);
}

void what_cannot_be_read_is_left_out(Job* job) {
  std::vector<float> values(1000, 1.0F);
  gloo::StandinBuffer buffer{nullptr, values.data(), 4000};
  const gloo::AllreduceOptions options = gloo::options(kWorld, &buffer, sizeof(float), job->tag++);
  buffer.bytes = 3996;  // not as many as the options say
  gloo::allreduce(options);
  gloo::StandinBuffer nowhere{nullptr, nullptr, 4000};
  gloo::AllreduceOptions broken = gloo::options(kWorld, &nowhere, sizeof(float), job->tag++);
  gloo::allreduce(broken);
  broken.tag = job->tag++;
  broken.set_outputs(reinterpret_cast<gloo::StandinBuffer**>(8), 1);
  gloo::allreduce(broken);
  CHECK(job->verified().empty());
}

[[maybe_unused]] void a_call_that_fails_has_no_result(Job* job) {
  std::vector<float> values(1000, 1.0F);
  gloo::standin_throws = true;
  try {
    job->reduce(kWorld, &values);
  } catch (const std::runtime_error&) {
    gloo::standin_throws = false;
  }
  CHECK(!gloo::standin_throws && job->verified().empty());
}

void switched_off_nothing_is_hashed(Job* job) {
  std::vector<float> values(1000, 1.0F);
  job->control->mode = static_cast<uint32_t>(falcon::Mode::kOff);
  for (int call = 0; call < 3; ++call) job->reduce(kWorld, &values);
  job->control->mode = static_cast<uint32_t>(falcon::Mode::kTrack);
  CHECK(job->verified().empty());
}

}  // namespace

int main() {
  const char* folder = getenv("FALCON_RING_DIR");
  const char* control = getenv("FALCON_CONTROL");
  if (folder == nullptr || control == nullptr) return 64;
  mkdir(folder, 0755);
  for (const std::string& old : rings(folder)) unlink(old.c_str());
  auto* header = reinterpret_cast<falcon::ControlHeader*>(make_control(control));
  known_hashes();
  std::vector<float> values(1000, 1.0F);
  gloo::StandinBuffer buffer{nullptr, values.data(), 4000};
  gloo::allreduce(gloo::options(kWorld, &buffer, sizeof(float), 0));
  const std::vector<std::string> files = rings(folder);
  if (files.size() != 1) return 1;
  Job job{view(files[0]), header};
  nothing_is_hashed_unless_asked(&job);
  each_result_is_hashed_when_each_is_asked_for(&job);
  one_call_of_each_turn_is_chosen_at_changing_places(&job);
  small_results_and_groups_of_one_are_left_out(&job);
  calls_without_tags_of_their_own_are_counted(&job);
  a_large_result_is_hashed_in_part(&job);
  what_cannot_be_read_is_left_out(&job);
#ifndef FALCON_EMULATED
  a_call_that_fails_has_no_result(&job);
#endif
  switched_off_nothing_is_hashed(&job);
  a_second_group_of_the_same_shape_says_so(&job);
  what_is_forgotten_may_have_been_of_the_same_shape(&job);
  unlink(files[0].c_str());
  rmdir(folder);
  return failures == 0 ? 0 : 1;
}
