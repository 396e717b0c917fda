// Where a step is in the plan that it follows, while nothing has to move.
//
// Python has the step's cursor, and everything that the plan asks to be done. In between it hands over: from there on
// operations that are the plan's next ones, on pages that are there, pass here, until one of them needs a decision.
//
// Without a plan Python hands over an outlook (`policy/base.py`): which pages are to leave and to come next. Then whatever
// operation passes of which it is known what it creates, and it is noted as if it were the next of a plan.

#pragma once

#include "carrier.h"

#include <array>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

namespace torch_lms {

struct PlannedOp {
  int name;  // see `Interposer::name`
  std::vector<int> pages;
  std::vector<int> creates;
  std::vector<int> dies;  // once it is over
  int64_t new_bytes;
  std::vector<int> evicts;   // once it is over: they are away until their next use
  std::vector<int> fetches;  // when it begins
  std::vector<int> drops;       // the recomputations of pages that are dropped once it is over
  std::vector<int> recomputes;  // those of pages that it needs
  bool moves;      // there are pages to move when it begins
  bool is_simple;  // and nobody waits for more of them than it needs
  bool is_captured;  // it may be repeated, to recompute a page
  bool is_python;    // it is a part of one that is to be split
  bool is_repeatable = false;  // it could be repeated; only known of what passed without a plan
};

// A page that is dropped and recomputed. As `policy/plan.py` has it.
struct Recomputation {
  int page;
  std::vector<int> inputs;
  int64_t extra_bytes;
  std::vector<int> ops;  // that are repeated
};

struct StepPlan {
  std::vector<PlannedOp> ops;
  std::vector<int64_t> nbytes;  // of its pages
  std::vector<Recomputation> recomputations;
};

// What Python says when it hands over.
struct Handover {
  std::shared_ptr<const StepPlan> plan;  // null for an outlook
  bool is_new;  // the step's cursor: nothing is bound yet
  int position;
  int device;
  int64_t limit;
  int64_t resident;
  int64_t peak;
  int64_t resident_peak;
  std::array<int64_t, max_tiers> held;  // bytes in each lower tier
  int64_t patience_us;  // after which it is looked whether copies down have ended, whose room a page waits for
  int64_t most_ops;     // without a plan, until Python looks
  int64_t most_at_once;  // the same; bytes that one operation may need that is not cut in pieces
  Carrier carrier;
};

// What it hears when it takes over again.
struct Passed {
  std::shared_ptr<Journal> journal;
  int64_t journaled = 0;  // operations in it
  int64_t ops = 0;
  int position = 0;
  size_t created = 0;  // pages by the last operation, so far
  std::vector<PageId> births;
  std::vector<std::pair<PageId, int>> bound;
  std::vector<std::pair<PageId, int64_t>> touched;  // pages, and the operation that used each first
  std::vector<PlannedOp> unplanned;  // the operations that passed, if there is no plan
};

// Not thread-safe: whoever calls holds the lock of the interposer.
class Following {
 public:
  explicit Following(Pages& pages) : moving(pages), pages_(pages) {}

  Moving moving;
  bool is_moving = false;  // pages move for the plan's next operation: no other may pass

  const Carrier& carrier() const {
    return handover_.carrier;
  }

  uint64_t epoch() const {
    return epoch_;
  }

  int position() const {
    return passed_.position;
  }

  int device() const {
    return handover_.device;
  }

  // Whether there is a plan.
  bool is_planned() const {
    return unplanned_ == nullptr;
  }

  void begin(Handover handover) {
    unplanned_ = nullptr;
    if (!handover.plan) {
      handover.plan = unplanned_ = std::make_shared<StepPlan>();
    } else if (handover.is_new) {
      numbered_.assign(handover.plan->nbytes.size(), no_page);
      for (const auto& page : pages_.all()) {
        page->number = no_number;
      }
    }
    handover_ = std::move(handover);
    began_s_ = now_s();
    passed_ = {};
    passed_.position = handover_.position;
    touches_ = 0;
    is_moving = false;
    moving.done = {};
    ++epoch_;
    start_journal();
    const Carrier& carrier = handover_.carrier;
    pages_.spill = carrier.spill ? carrier.spill : pages_.spill;
    pages_.lanes = carrier.lanes ? carrier.lanes : pages_.lanes;
    pages_.lanes_tier = carrier.lanes ? carrier.tier : pages_.lanes_tier;
    Account& account = pages_.account(handover_.device);
    account.limit = handover_.limit;
    account.resident = handover_.resident;
    account.peak = handover_.peak;
    account.watched_from = account.unwatched = 0;
    account.resident_peak = handover_.resident_peak;
    account.held = handover_.held;
    wait_for_room();
  }

  // The journal so far, and how many operations are in it. Another begins.
  std::pair<std::shared_ptr<Journal>, int64_t> cut() {
    std::pair<std::shared_ptr<Journal>, int64_t> written{passed_.journal, passed_.journaled};
    start_journal();
    return written;
  }

  // Bytes that operations created for which pages were moved here.
  int64_t take_made() {
    return std::exchange(made_bytes_, 0);
  }

  // The tick, counted from where Python handed over, of the operation that used the page last; 0 if that was before.
  static int64_t last_use(const Page& page) {
    return page.is_touched ? page.touch.tick : 0;
  }

  // Whether moves before the plan's next operation may be performed here.
  bool may_carry() const {
    const Carrier& carrier = handover_.carrier;
    if (!carrier.exists() || made_bytes_ >= carrier.most_made) {
      return false;
    }
    const Account& account = pages_.account(handover_.device);
    return now_s() < carrier.until_s || account.limit - account.resident >= next()->new_bytes;
  }

  // They were, all of them.
  void has_carried(const Outcome& outcome) {
    const auto tier = static_cast<size_t>(handover_.carrier.tier);
    const auto& held = pages_.account(handover_.device).held;
    made_bytes_ += op_at(passed_.position).new_bytes;
    for (const Spent& spent : outcome.spent) {
      made_bytes_ += spent.nbytes;
      passed_.journal->spent(spent.page, spent.nbytes, spent.until_s, spent.until);
    }
    if (outcome.began) {
      passed_.journal->moved(held[tier], held[tier + 1], outcome.began, outcome.ended);  // the disk is behind
    } else {
      passed_.journal->moved(0, held[tier]);
    }
    wait_for_room();
  }

  // They went like that: pages that left or came may be used on other streams now, or it is not known on which.
  void know_streams(const std::vector<Carried>& moves, const Outcome& outcome) {
    for (size_t place = 0; place < moves.size() && place <= outcome.count; ++place) {
      const Act act = moves[place].move.act;
      Page* page = pages_.find(moves[place].move.page);
      if (page != nullptr && act != Act::start_evict && act != Act::finish_evict && act != Act::discard) {
        page->streams.clear();
      }
    }
    for (const auto& [id, streams] : outcome.streams) {
      if (Page* page = pages_.find(id)) {
        page->streams.assign(streams.begin(), streams.end());
      }
    }
  }

  // What is to recompute the page, which is dropped now. Whether it can: it takes what has been recorded in any case.
  std::pair<std::shared_ptr<Program>, bool> new_program(const Page& page) const {
    const auto& recipe = *page.recipe;
    auto program = std::make_shared<Program>(page.id, handover_.carrier.calls->at(recomputation(recipe.number).ops));
    const auto writes_of = [&](PageId id) {
      const Page* found = pages_.find(id);
      return found == nullptr ? -1 : found->writes;
    };
    const bool is_able = program->makes_it_from(recipe.inputs, writes_of) && program->takes(recipe.inputs, pages_);
    return {std::move(program), is_able};
  }

  // Pages that were dropped have their programs now, and those that were recomputed need none. The moves have the others:
  // whoever lets go of one holds no lock.
  void exchange_programs(std::vector<Carried>& moves, size_t count) {
    for (size_t place = 0; place < count; ++place) {
      Carried& carried = moves[place];
      Page* page = pages_.find(carried.move.page);
      if (page != nullptr && carried.move.act == Act::drop) {
        std::swap(page->program, carried.program);
      } else if (page != nullptr && carried.move.act == Act::recompute) {
        page->program = nullptr;
      }
    }
  }

  // Of the moves only the first `count` were performed, and after the next the page `failed` is in that state.
  void go_back(size_t count, PageId failed, State state) {
    moving.go_back(count);
    if (Page* page = pages_.find(failed)) {
      pages_.set(*page, state, state == State::resident ? no_tier : page->tier);
    }
  }

  // From when on a page that is to be fetched may find room.
  void wait_for_room() {
    wanted_ = moving.wanted();
    until_ = std::chrono::steady_clock::now() + std::chrono::microseconds(handover_.patience_us);
  }

  Passed end() {
    pages_.sweep();
    pages_.journal = nullptr;
    handover_.carrier = {};
    if (!is_planned()) {
      passed_.unplanned = std::move(unplanned_->ops);
      passed_.unplanned.resize(static_cast<size_t>(passed_.ops));
    }
    return std::exchange(passed_, {});
  }

  void bind(Page& page, int number) {
    if (Page* before = numbered(number)) {
      before->number = no_number;
    }
    page.number = number;
    numbered_[static_cast<size_t>(number)] = page.id;
  }

  // Without a plan: such an operation is next, instead of one that was but did not begin.
  void expect(const PlannedOp& op) {
    auto& ops = unplanned_->ops;
    ops.resize(static_cast<size_t>(passed_.position + 1));
    ops.push_back(op);
  }

  // Whether Python has to look again, before another operation goes by what it said.
  bool is_outlook_over() const {
    const bool is_long_ago = passed_.ops >= least_ops && now_s() > began_s_ + outlook_s;
    return passed_.ops >= handover_.most_ops || is_long_ago;
  }

  // The operation that the plan has next; null if that was its last.
  const PlannedOp* next() const {
    const auto place = static_cast<size_t>(passed_.position + 1);
    return place < handover_.plan->ops.size() ? &handover_.plan->ops[place] : nullptr;
  }

  // Whether these are the pages that the plan has there.
  bool are(const std::vector<Page*>& pages, const std::vector<int>& numbers) const {
    if (pages.size() != numbers.size()) {
      return false;
    }
    for (size_t place = 0; place < pages.size(); ++place) {
      const Page& page = *pages[place];
      const int number = numbers[place];
      if (page.number != number && (page.number != no_number || !may_be(page, number))) {
        return false;
      }
    }
    return true;
  }

  // Whether `op` needs so much that it is to be split: a part of the limit, if it goes in `runs`. `used`: its pages.
  bool is_large(const PlannedOp& op, const std::vector<Page*>& used, int64_t runs) {
    int64_t working_set = op.new_bytes;
    for (const Page* page : used) {
      working_set += page->nbytes;
    }
    return working_set > (runs == 1 && !is_planned() ? handover_.most_at_once : handover_.limit / runs);
  }

  // Bytes of room, beside what is `promised`.
  int64_t room(int64_t promised) {
    const Account& account = pages_.account(handover_.device);
    return account.limit - account.resident - promised;
  }

  // Whether there is room for so much, now that what died is gone.
  bool has_room(int64_t nbytes) {
    if (room(nbytes) < 0) {
      pages_.sweep();
    }
    return room(nbytes) >= 0;
  }

  // Whether there is room for what `op` creates, and no page is to be fetched first.
  bool has_room(const PlannedOp& op, int64_t promised) {
    const int64_t nbytes = promised + op.new_bytes;
    if (!has_room(nbytes) || (wanted_ != 0 && room(nbytes) >= wanted_)) {
      return false;
    }
    return wanted_ == 0 || !pages_.are_any_leaving() || std::chrono::steady_clock::now() < until_;
  }

  // The moves before the plan's next operation, on `used`; see `Moving::decide`.
  std::optional<std::vector<Move>> decide(
      const std::vector<Page*>& used, const std::vector<PageId>& written, const std::vector<PageId>& landed) {
    const PlannedOp& op = *next();
    if (!op.is_simple) {
      return std::nullopt;
    }
    if (passed_.position >= 0) {
      each_of(op_at(passed_.position).evicts, [&](Page& page) { moving.is_due(page); });
      for (const int number : op_at(passed_.position).drops) {
        has_dropped(number);
      }
    }
    for (Page* page : used) {
      moving.use(*page);
    }
    for (const int number : op.recomputes) {
      each_of(recomputation(number).inputs, [&](Page& page) { moving.forget(page); });
    }
    each_of(op.fetches, [&](Page& page) { moving.comes(page); });
    return moving.decide(handover_.device, used, written, op.new_bytes, landed);
  }

  // The plan's next operation begins.
  void advance(const std::vector<Page*>& used) {
    proceed(used);
    ++passed_.journaled;
    passed_.journal->begins(passed_.position, pages_.account(handover_.device).resident);
    for (const Page* page : used) {
      passed_.journal->uses(page->id);
    }
  }

  // The same, of an operation of which Python keeps a record.
  void proceed(const std::vector<Page*>& used) {
    const PlannedOp& op = *next();
    ++passed_.position;
    ++passed_.ops;
    passed_.created = 0;
    created_bytes_ = 0;
    for (size_t place = 0; place < used.size(); ++place) {
      Page& page = *used[place];
      if (is_planned() && page.number == no_number) {
        bind(page, op.pages[place]);
        passed_.bound.emplace_back(page.id, page.number);
      }
      moving.use(page);
      touch(page);
    }
  }

  // That was then, on a stream.
  void begins_at(int position, Mark moment) {
    passed_.journal->begins_at(position, std::move(moment));
  }

  // It does not begin after all.
  void retreat() {
    --passed_.position;
    --passed_.ops;
  }

  // It failed, and is begun anew in Python. `size`: of the journal, when it began. Whether that could be undone.
  bool take_back(int position, size_t size) {
    if (position != passed_.position) {
      return false;
    }
    retreat();
    --passed_.journaled;
    passed_.journal->shrink(size);
    return true;
  }

  // Whether the plan has the operation that began last create a page next, of so many bytes or more.
  bool creates(int64_t nbytes) const {
    if (!is_planned()) {
      return created_bytes_ + nbytes <= op_at(passed_.position).new_bytes;
    }
    const auto& expected = op_at(passed_.position).creates;
    return passed_.created < expected.size() &&
        handover_.plan->nbytes[static_cast<size_t>(expected[passed_.created])] >= nbytes;
  }

  void created(Page& page) {
    if (is_planned()) {
      bind(page, op_at(passed_.position).creates[passed_.created++]);
    }
    created_bytes_ += page.nbytes;
    passed_.journal->created(page.id, page.nbytes);
    passed_.births.push_back(page.id);
    touch(page);
  }

  void wrote(PageId id) {
    if (Page* page = pages_.find(id)) {
      touch(*page);
      ++page->touch.writes;
      ++page->writes;
      if (page->state == State::clean) {  // if it has left meanwhile, that was after the write
        pages_.give_up_copy(*page);
      }
      passed_.journal->wrote(id);
    }
  }

  void ends() {
    passed_.journal->ends();
  }

  size_t journal_size() const {
    return passed_.journal->events().size();
  }

  // Forget the pages that die, by the plan, after the operation that began last.
  void bury_expected() {
    if (passed_.position < 0) {
      return;
    }
    each_of(op_at(passed_.position).dies, [&](Page& page) {
      if (page.is_dead()) {
        pages_.bury(&page);
      }
    });
  }

  // Without a plan: forget pages that died since the operation before, so that their deaths are noted where they were. Of
  // many pages those that were used last; the others are looked at now and then.
  void bury_dead() {
    if (pages_.size() <= most_looked_at || ++unswept_ >= pages_.size() / most_looked_at) {
      unswept_ = 0;
      pages_.sweep();
      return;
    }
    for (const PageId id : recent_) {
      Page* page = pages_.find(id);
      if (page != nullptr && page->is_dead()) {
        pages_.bury(page);
      }
    }
  }

  int64_t ops() const {
    return passed_.ops;
  }

 private:
  void start_journal() {
    passed_.journal = std::make_shared<Journal>();
    passed_.journaled = 0;
    pages_.journal = passed_.journal.get();
  }

  const PlannedOp& op_at(int position) const {
    return handover_.plan->ops[static_cast<size_t>(position)];
  }

  const Recomputation& recomputation(int number) const {
    return handover_.plan->recomputations[static_cast<size_t>(number)];
  }

  // The plan has the page of this recomputation dropped from here on, if it and its inputs are known.
  void has_dropped(int number) {
    const auto& planned = recomputation(number);
    std::vector<PageId> inputs;
    each_of(planned.inputs, [&](const Page& page) { inputs.push_back(page.id); });
    if (inputs.size() == planned.inputs.size()) {
      const auto recipe = std::make_shared<const Recipe>(Recipe{number, std::move(inputs), planned.extra_bytes});
      each_of({planned.page}, [&](Page& page) { moving.is_due(page, recipe); });
    }
  }

  // Calls `visit` with each page of these numbers that is known.
  template <typename Visit>
  void each_of(const std::vector<int>& numbers, const Visit& visit) {
    for (const int number : numbers) {
      if (Page* page = numbered(number)) {
        visit(*page);
      }
    }
  }

  // The page of that number; null if no page has it, or not any more.
  Page* numbered(int number) const {
    Page* page = pages_.find(numbered_[static_cast<size_t>(number)]);
    return page != nullptr && page->number == number ? page : nullptr;
  }

  // A page without a number: whether it may have this one.
  bool may_be(const Page& page, int number) const {
    return handover_.plan->nbytes[static_cast<size_t>(number)] >= page.nbytes && numbered(number) == nullptr;
  }

  void touch(Page& page) {
    if (!page.is_touched) {
      page.is_touched = true;
      page.touch = {};
      passed_.touched.emplace_back(page.id, passed_.ops);
    }
    page.touch.at = ++touches_;
    page.touch.tick = passed_.ops;
    recent_[touches_ % recent_.size()] = page.id;
  }

  Pages& pages_;
  Handover handover_ = {};
  std::shared_ptr<StepPlan> unplanned_;  // what passed, if there is no plan
  std::chrono::steady_clock::time_point until_;
  Passed passed_ = {};
  int64_t created_bytes_ = 0;  // by the last operation, so far
  static constexpr int64_t least_ops = 8;    // by one outlook, which is some 10 ms old at most:
  static constexpr double outlook_s = 10e-3;  // what it says is good enough, and a look costs some 0.3 ms
  double began_s_ = 0;
  static constexpr size_t most_looked_at = 256;  // pages, for each operation
  std::array<PageId, 64> recent_ = {};  // that were used last
  size_t unswept_ = 0;  // operations since all pages were looked at
  int64_t made_bytes_ = 0;
  int64_t wanted_ = 0;  // with so much room, a page is to be fetched; 0 if none waits for that
  std::vector<PageId> numbered_;  // by number in the plan
  uint64_t touches_ = 0;
  uint64_t epoch_ = 0;
};

}  // namespace torch_lms
