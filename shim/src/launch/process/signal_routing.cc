#include "process/signal_routing.h"

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <set>

namespace falcon {
namespace {

uint64_t bit(int number) { return uint64_t{1} << (number - 1); }

// Caught, or blocked for a thread that waits for it, as init programs do (tini, dumb-init).
bool takes(const Member& member, int number) {
  return ((member.signals.caught | member.signals.blocked) & bit(number)) != 0;
}

bool ignores(const Member& member, int number) { return (member.signals.ignored & bit(number)) != 0; }

// Whether the signal does not end a process that has no handler for it: it stops it, continues it, or does nothing.
bool is_harmless(int number) { return number == SIGCONT || number == SIGTSTP || number == SIGWINCH; }

// Whether a blocked signal still lies there: no thread waits for it.
bool leaves_it(const Member& member, int number) {
  return (member.signals.caught & bit(number)) == 0 && (member.signals.pending & bit(number)) != 0;
}

}  // namespace

// One tree, with its branches.
class SignalRouting::Look {
 public:
  Look(const ProcessTree& tree, const std::map<Life, Signalled>& signalled) : tree_(tree), signalled_(signalled) {
    for (const Member& member : tree.members) {
      if (!member.process.ended) children_[member.process.parent].push_back(&member);
    }
    for (const RankRoot& rank : tree.ranks) {
      if (rank.running) running_.insert(rank.pid);
    }
  }

  const ProcessTree& tree() const { return tree_; }

  const std::vector<const Member*>& children(pid_t pid) const {
    static const std::vector<const Member*> kNone;
    const auto found = children_.find(pid);
    return found == children_.end() ? kNone : found->second;
  }

  // The first processes of the ranks that run.
  std::vector<const Member*> roots() const { return of_launcher(true); }

  // What ended ranks have left: each the top of a branch, since the launcher adopts orphans.
  std::vector<const Member*> heads() const { return of_launcher(false); }

  // A program that has taken its end keeps it for itself and its helpers, though it has removed its handler since.
  bool is_taker(const Member& member, int number) const {
    if (takes(member, number)) return true;
    const auto found = signalled_.find({member.process.pid, member.process.started});
    return is_ending(number) && found != signalled_.end() && found->second.takes;
  }

  bool any_running() const { return !running_.empty(); }

  bool any_unreaped() const { return roots().size() < running_.size(); }

  bool has_taker_below(const Member& top, int number) const {
    const auto& below = branches(top, number);
    return std::any_of(below.begin(), below.end(), [&](const Member* child) {
      return is_taker(*child, number) || has_taker_below(*child, number);
    });
  }

  // Where a signal goes on below a process that does not take it. A program that ignores it has decided so for its own
  // helpers as well; a shell that ignores it runs another program.
  std::vector<const Member*> branches(const Member& top, int number) const {
    std::vector<const Member*> found = children(top.process.pid);
    if (!ignores(top, number) || top.program.empty()) return found;
    const auto is_helper = [&](const Member* child) { return child->program == top.program; };
    found.erase(std::remove_if(found.begin(), found.end(), is_helper), found.end());
    return found;
  }

 private:
  std::vector<const Member*> of_launcher(bool running) const {
    std::vector<const Member*> found;
    for (const Member* member : children(tree_.launcher)) {
      if ((running_.count(member->process.pid) != 0) == running) found.push_back(member);
    }
    return found;
  }

  const ProcessTree& tree_;
  const std::map<Life, Signalled>& signalled_;
  std::map<pid_t, std::vector<const Member*>> children_;
  std::set<pid_t> running_;
};

bool SignalRouting::is_ending(int number) {
  return number == SIGTERM || number == SIGINT || number == SIGQUIT || number == SIGHUP;
}

void SignalRouting::begin() {
  signalled_.clear();
  first_survivor_ns_.clear();
  stopping_ = urgent_ = any_cut_off_ = false;
}

std::vector<Delivery> SignalRouting::forward(const ProcessTree& tree, int number) {
  const Look look(tree, signalled_);
  std::vector<Delivery> deliveries;
  for (const Member* root : look.roots()) route(look, *root, number, Origin::kRank, false, stop_ns_, &deliveries);
  if (number != SIGCONT) return deliveries;
  for (const Member& member : tree.members) {  // also what no signal of ours has stopped
    const Delivery each{member.process.pid, SIGCONT};
    const bool known = std::find(deliveries.begin(), deliveries.end(), each) != deliveries.end();
    if (member.process.stopped && !known) deliveries.push_back(each);
  }
  return deliveries;
}

std::vector<Delivery> SignalRouting::stop(const ProcessTree& tree, const StopTerms& terms, bool urgent,
                                          int64_t now_ns) {
  terms_ = terms;
  stopping_ = true;
  urgent_ = urgent;
  stop_ns_ = now_ns;
  const Look look(tree, signalled_);
  std::vector<Delivery> deliveries;
  for (const Member* root : look.roots()) {
    route(look, *root, terms.number, Origin::kRank, terms.planned, now_ns, &deliveries);
  }
  for (const Member& member : tree.members) {  // a stopped process could not answer
    if (member.process.stopped) deliveries.push_back({member.process.pid, SIGCONT});
  }
  return deliveries;
}

// A process above is signalled before those below it: a shell must not go on to its next command when the program that
// it waits for has ended. It must also be dead by then: a shell that still waits takes the program's exit code with it.
void SignalRouting::route(const Look& look, const Member& top, int number, Origin origin, bool planned, int64_t now_ns,
                          std::vector<Delivery>* deliveries) {
  std::vector<const Member*> level{&top};
  while (!level.empty()) {
    std::vector<const Member*> next;
    for (const Member* member : level) {
      const bool taken = look.is_taker(*member, number);
      const bool above = is_ending(number) && look.has_taker_below(*member, number);
      if (taken || above || (is_ending(number) && member == &top) || is_harmless(number)) {
        const size_t before = deliveries->size();
        deliver(*member, top.process.pid, number, origin, planned, now_ns, deliveries);
        const bool dies = !taken && !ignores(*member, number) && !member->process.stopped;
        for (size_t at = before; at < deliveries->size(); ++at) (*deliveries)[at].ends_first = above && dies;
      }
      if (taken) continue;
      for (const Member* child : look.branches(*member, number)) next.push_back(child);
    }
    level = std::move(next);
  }
}

void SignalRouting::deliver(const Member& member, pid_t rank, int number, Origin origin, bool planned, int64_t now_ns,
                            std::vector<Delivery>* deliveries) {
  const Delivery delivery{member.process.pid, number};
  if (!is_ending(number)) {
    deliveries->push_back(delivery);
    return;
  }
  const auto [at, fresh] = signalled_.try_emplace({member.process.pid, member.process.started});
  Signalled& signalled = at->second;
  // A plan's stop and the end of the pod that follows are one end to the program: it gets one signal.
  const bool known = !fresh && signalled.number == number && signalled.planned;
  signalled.planned = planned;
  if (known) return;
  if (fresh) {
    signalled.origin = origin;
    signalled.rank = rank;
    signalled.at_ns = now_ns;
  }
  signalled.number = number;
  signalled.takes = signalled.takes || takes(member, number);
  signalled.ignores = ignores(member, number);
  deliveries->push_back(delivery);
}

Routed SignalRouting::look(const ProcessTree& tree, int64_t now_ns) {
  const Look look(tree, signalled_);
  Routed routed;
  signal_survivors(look, now_ns, &routed);
  // Until it is reaped, an ended rank counts as one that runs, and what it has left is not signalled yet.
  routed.waits = routed.waits || look.any_unreaped();
  std::vector<const Member*> late;
  for (const Member& member : tree.members) {
    const Signalled* known = signalled(member);
    if (known == nullptr || member.process.ended) continue;
    if (has_time(member, *known, now_ns)) {
      routed.waits = true;
    } else if (known->origin == Origin::kSurvivor) {
      late.push_back(&member);
    }
  }
  for (size_t at = 0; at < late.size(); ++at) {  // with all that is below it, which would be signalled next
    routed.deliveries.push_back({late[at]->process.pid, SIGKILL});
    const auto& below = look.children(late[at]->process.pid);
    late.insert(late.end(), below.begin(), below.end());
  }
  return routed;
}

void SignalRouting::signal_survivors(const Look& look, int64_t now_ns, Routed* routed) {
  const int number = stopping_ ? terms_.number : SIGTERM;
  for (const Member* head : look.heads()) {
    if (signalled(*head) != nullptr || !is_due(look, *head, now_ns, &routed->waits)) continue;
    const auto& ranks = look.tree().ranks;
    const bool known =
        std::any_of(ranks.begin(), ranks.end(), [&](const RankRoot& rank) { return rank.pid == head->process.group; });
    const int64_t first_ns = first_survivor_ns_.emplace(known ? head->process.group : 0, now_ns).first->second;
    const size_t before = routed->deliveries.size();
    route(look, *head, number, Origin::kSurvivor, true, now_ns, &routed->deliveries);
    if (head->process.stopped) routed->deliveries.push_back({head->process.pid, SIGCONT});
    // A shell above may take all of its own time before a program below it gets its signal.
    const bool waits_first =
        std::any_of(routed->deliveries.begin() + static_cast<std::ptrdiff_t>(before), routed->deliveries.end(),
                    [](const Delivery& each) { return each.ends_first; });
    for (size_t at = before; at < routed->deliveries.size(); ++at) {
      for (const Member& member : look.tree().members) {
        if (member.process.pid != routed->deliveries[at].pid) continue;
        Signalled& survivor = signalled_[{member.process.pid, member.process.started}];
        const int64_t least_ns = now_ns + (survivor.ignores ? kIgnoringNs : kDyingNs) + (waits_first ? kEndNs : 0);
        survivor.until_ns = survivor.takes ? std::max(first_ns + kSurvivorNs, least_ns) : least_ns;
      }
    }
  }
}

// Whether the signal for what an ended rank has left has come; `*waits` is set where it has yet to be waited for.
bool SignalRouting::is_due(const Look& look, const Member& head, int64_t now_ns, bool* waits) const {
  const ProcessTree& tree = look.tree();
  const auto own = std::find_if(tree.ranks.begin(), tree.ranks.end(),
                                [&](const RankRoot& rank) { return rank.pid == head.process.group; });
  const bool known = own != tree.ranks.end();  // the others have left their rank's process group
  // A program whose shell has died of the signal is the rank until it has ended, and needs its helpers.
  const bool saves = std::any_of(tree.members.begin(), tree.members.end(), [&](const Member& member) {
    const Signalled* found = signalled(member);
    return found != nullptr && found->origin == Origin::kRank && found->takes && !member.process.ended &&
           (!known || member.process.group == own->pid);
  });
  if (saves || (known ? own->running : look.any_running())) return false;
  const bool well =
      known ? own->well
            : std::all_of(tree.ranks.begin(), tree.ranks.end(), [](const RankRoot& rank) { return rank.well; });
  if (!well || urgent_) return true;
  if (look.any_running()) return false;
  int64_t ended_ns = 0;
  for (const RankRoot& rank : tree.ranks) ended_ns = std::max(ended_ns, rank.ended_ns);
  const bool due = now_ns - ended_ns >= kUndisturbedNs;
  *waits = *waits || !due;
  return due;
}

void SignalRouting::note_end(pid_t pid, bool well, bool killed) {
  Signalled* last = nullptr;  // of the processes that had this id, which are in the order of their starts
  for (auto at = signalled_.lower_bound({pid, 0}); at != signalled_.end() && at->first.first == pid; ++at) {
    last = &at->second;
  }
  if (last != nullptr && last->origin == Origin::kRank) {
    last->ended = true;
    last->well = well;
  } else if (killed) {
    any_cut_off_ = true;
  }
}

bool SignalRouting::programs_ended_well(pid_t rank) const {
  bool any = false;
  for (const auto& [life, known] : signalled_) {
    if (known.origin != Origin::kRank || known.rank != rank || !known.takes || !is_ending(known.number)) continue;
    if (!known.ended || !known.well) return false;
    any = true;
  }
  return any && !any_cut_off_;
}

bool SignalRouting::has_time(const Member& member, const Signalled& signalled, int64_t now_ns) const {
  if (signalled.origin == Origin::kSurvivor) return now_ns < signalled.until_ns;
  const bool taken = signalled.takes && !leaves_it(member, signalled.number);
  return now_ns - stop_ns_ < (taken ? terms_.taken_ns : terms_.not_taken_ns);
}

const SignalRouting::Signalled* SignalRouting::signalled(const Member& member) const {
  const auto found = signalled_.find({member.process.pid, member.process.started});
  return found == signalled_.end() ? nullptr : &found->second;
}

}  // namespace falcon
