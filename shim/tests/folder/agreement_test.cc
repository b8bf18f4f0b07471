// agreement_test: when several replicas' parts are one whole; without files.
#include "units/agreement.h"

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"

namespace {

using falcon::Agreement;
using falcon::Following;
using falcon::OwnLook;
using falcon::Statement;
using Verdict = Agreement::Verdict;

int failures = 0;

void expect(bool holds, const char* what, int line) {
  if (holds || failures >= 20) return;
  ++failures;
  fprintf(stderr, "agreement_test.cc:%d: %s\n", line, what);
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)

constexpr char kUnit[] = "step-2";

// Replicas that read each other's statements, a second a round, in the order of their numbers.
class Replicas {
 public:
  explicit Replicas(int count) : statements(static_cast<size_t>(count)), looks(static_cast<size_t>(count)) {
    for (int each = 0; each < count; ++each) agreements_.emplace_back(each, count);
  }

  void round() {
    now_ns_ += falcon::kSecondNs;
    for (size_t each = 0; each < statements.size(); ++each) {
      if (silent.count(each) != 0) continue;
      Agreement& agreement = agreements_[each];
      std::map<int, Statement> read;
      for (size_t other = 0; other < statements.size(); ++other) {
        const auto text = falcon::parse_statement(statements[other].text());
        if (other != each && statements[other].sequence > 0 && text) read[static_cast<int>(other)] = *text;
      }
      agreement.hear(read, now_ns_);
      OwnLook& look = looks[each];
      ++look.number;
      look.now_ns = now_ns_;
      const std::map<std::string, int64_t> units = statements[each].units;
      look.overlaps = [units](const std::string& unit) { return units.count(unit) != 0; };
      agreement.answer(look, &statements[each]);
      ++statements[each].sequence;
    }
  }

  void rounds(int count) {
    for (int each = 0; each < count; ++each) round();
  }

  void flush() {
    for (size_t each = 0; each < statements.size(); ++each) {
      if (silent.count(each) == 0) looks[each].ended_ns = now_ns_;
    }
  }

  Verdict verdict(size_t each) const { return agreements_[each].verdict(kUnit, statements[each], looks[each]); }
  Verdict names(size_t each) const { return agreements_[each].names_verdict(statements[each].names, looks[each]); }

  std::vector<Statement> statements;
  std::vector<OwnLook> looks;
  std::set<size_t> silent;

 private:
  std::vector<Agreement> agreements_;
  int64_t now_ns_ = falcon::kSecondNs;
};

void alone() {
  Replicas one(1);
  one.statements[0].units[kUnit] = 1;
  one.round();
  EXPECT(one.verdict(0) == Verdict::kPublish);
}

void both_parts() {
  Replicas two(2);
  two.statements[0].units[kUnit] = 1;
  two.statements[1].units[kUnit] = 0;
  two.rounds(60);
  EXPECT(two.verdict(0) == Verdict::kWait);  // the other still writes
  two.statements[1].units[kUnit] = 7;
  two.rounds(2);
  EXPECT(two.verdict(0) == Verdict::kPublish);
  two.statements[1].units[kUnit] = 0;  // it has changed since
  two.round();
  two.statements[1].units[kUnit] = 8;
  two.round();
  two.statements[1].agreed.clear();
  EXPECT(two.verdict(0) == Verdict::kWait || two.verdict(1) == Verdict::kWait);
}

void absent_parts() {
  Replicas two(2);
  two.statements[0].units[kUnit] = 1;
  two.rounds(2);
  EXPECT(two.verdict(0) == Verdict::kWait);
  two.rounds(3);
  EXPECT(two.verdict(0) == Verdict::kPublish);

  Replicas usual(2);  // the other had a part in the last one
  usual.statements[1].kinds = {"step-#"};
  usual.statements[0].units[kUnit] = 1;
  usual.rounds(6);
  EXPECT(usual.verdict(0) == Verdict::kWait);
  usual.rounds(8);
  EXPECT(usual.verdict(0) == Verdict::kPublish);
}

void lost_replicas() {
  Replicas missing(2);  // its part is needed
  missing.statements[0].kinds = missing.statements[1].kinds = {"step-#"};
  missing.rounds(3);
  missing.silent = {1};
  missing.statements[0].units[kUnit] = 1;
  missing.rounds(3);
  missing.flush();
  missing.rounds(3);
  EXPECT(missing.verdict(0) == Verdict::kRefuse);

  Replicas other(2);  // it never had one
  other.statements[0].kinds = {"step-#"};
  other.rounds(3);
  other.silent = {1};
  other.statements[0].units[kUnit] = 1;
  other.rounds(30);
  EXPECT(other.verdict(0) == Verdict::kWait);  // it may come back
  other.flush();
  other.rounds(2);
  EXPECT(other.verdict(0) == Verdict::kPublish);

  Replicas left(2);  // it was about to write its first
  left.rounds(3);
  left.flush();
  left.statements[1].state = Following::kLeft;
  left.silent = {1};
  left.statements[0].units[kUnit] = 1;
  left.rounds(2);
  EXPECT(left.verdict(0) == Verdict::kRefuse);
  left.statements[1].well = true;
  ++left.statements[1].sequence;
  left.rounds(2);
  EXPECT(left.verdict(0) == Verdict::kPublish);
}

void names_wait() {
  Replicas two(2);
  two.rounds(2);
  two.statements[0].names = 1;
  two.looks[1].oldest_data_look = 3;  // it has something that is older
  two.rounds(9);
  EXPECT(two.names(0) == Verdict::kWait);
  two.looks[1].oldest_data_look = 9;  // durable now; what came later does not count
  two.rounds(2);
  EXPECT(two.names(0) == Verdict::kPublish);
  two.statements[0].names = 2;
  EXPECT(two.names(0) == Verdict::kWait);
}

void texts() {
  Statement statement;
  statement.sequence = 5;
  statement.state = Following::kFlushing;
  statement.well = true;
  statement.units = {{"a b\n%", 3}, {"", 0}};
  statement.agreed = {{"x", "0.1,1.2"}};
  statement.refused = {"y"};
  statement.names = 8;
  statement.cleared = {{3, {4, 5}}};
  statement.run_folders = {"run"};
  statement.kinds = {"step-#"};
  const auto again = falcon::parse_statement(statement.text());
  EXPECT(again && again->text() == statement.text() && again->units == statement.units);
  EXPECT(!falcon::parse_statement(statement.text().substr(0, 20)));  // cut off
}

}  // namespace

int main() {
  alone();
  both_parts();
  absent_parts();
  lost_replicas();
  names_wait();
  texts();
  if (failures == 0) printf("agreement_test: ok\n");
  return failures == 0 ? 0 : 1;
}
