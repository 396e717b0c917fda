// Performs a plan's moves, without Python: between the CPU and a file, or a device and host memory. What is not plain is
// Python's: disks behind host memory, files that were loaded, memory that is not PyTorch's own, copies that take long,
// whatever fails.

#pragma once

#include "moving.h"
#include "program.h"

namespace torch_lms {

// A move, with all that has to be known of its page.
struct Carried {
  Move move;
  int64_t nbytes = 0;
  int tier = no_tier;  // of its lower copy
  c10::weak_intrusive_ptr<c10::StorageImpl> alive{Held()};
  bool is_used = false;          // by the operation that is about to begin
  int64_t last_use = 0;          // the tick of the operation that used it last, or of a later one
  std::optional<StreamId> home;  // for which its memory was allocated, if Python never heard of the page
  std::shared_ptr<Program> program;  // if it is dropped or recomputed
  std::vector<std::pair<PageId, StreamId>> homes;  // of inputs of which Python never heard
};

// What the program was busy with, since what comes before: recomputing a page, or waiting, if there is none.
struct Spent {
  PageId page;
  int64_t nbytes;
  double until_s;
  Mark until;  // where there are streams
};

// How moves went: whether that is all, or how many were performed; after the next the page `failed` is in `state`, if that
// is not as it was. Where there are streams: when the moves began and ended, and on which streams pages may be used now.
struct Outcome {
  bool is_all = false;
  size_t count = 0;
  PageId failed = no_page;
  State state = State::other;
  Mark began;
  Mark ended;
  std::vector<Spent> spent;
  std::vector<std::pair<PageId, std::vector<StreamId>>> streams;
};

struct Carrier {
  std::shared_ptr<Spill> spill;  // of the CPU
  std::shared_ptr<Lanes> lanes;  // of a device with streams; neither: all moves are Python's
  std::shared_ptr<Calls> calls;  // of this step
  int tier = no_tier;            // the number of that below
  int64_t most_made = 0;         // bytes that are created, until Python looks at the heap
  double until_s = 0;            // when it asks again how much room there is, if that is short
  int64_t tick = 0;              // of the last operation when Python handed over

  bool exists() const {
    return spill || lanes;
  }

  // Copies that Python has not counted.
  size_t made() const {
    return lanes ? lanes->made() : spill->made();
  }

  // Pages whose copies have ended. No lock is held.
  std::vector<PageId> landed() const {
    return lanes ? lanes->landed() : spill->landed();
  }

  // No lock is held: to hold a storage, or to let go of it, may need the GIL. `so_far`: operations since Python handed over.
  Outcome perform(const std::vector<Carried>& moves, int64_t so_far) const {
    Outcome outcome;
    try {
      std::vector<Held> storages;
      for (const Carried& carried : moves) {
        storages.push_back(carried.alive.lock());
        if (!can(carried, storages.back())) {
          return outcome;
        }
      }
      if (lanes) {
        perform_on_device(moves, storages, so_far, outcome);
      } else {
        while (outcome.count < moves.size() && perform(moves, storages[outcome.count], outcome)) {
          ++outcome.count;
        }
        outcome.is_all = outcome.count == moves.size();
      }
    } catch (const std::exception&) {  // no memory: Python tries again, and tells
    }
    try {
      lanes ? lanes->take_let_go() : spill->take_let_go();
    } catch (const std::exception&) {  // the device's: whoever asks next lets go
    }
    return outcome;
  }

 private:
  static constexpr std::chrono::microseconds patience{2000};  // after which Python waits, whom an interrupt reaches

  bool can(const Carried& carried, const Held& storage) const {
    const Act act = carried.move.act;
    const bool is_possible = carried.program || (act != Act::discard && carried.tier == tier);
    return is_possible && (!storage || is_plain(*storage));
  }

  bool is_plain(const c10::StorageImpl& storage) const {
    if (lanes) {
      return storage.resizable();
    }
    const auto deleter = storage.data_ptr().get_deleter();
    return storage.resizable() && (storage.nbytes() == 0 || deleter == c10::GetCPUAllocator()->raw_deleter());
  }

  // The next move.
  bool perform(const std::vector<Carried>& moves, const Held& storage, Outcome& outcome) const {
    const auto next = moves.begin() + static_cast<std::ptrdiff_t>(outcome.count);
    const Carried& carried = *next;
    const PageId page = carried.move.page;
    const auto failed = [&](State state) {
      outcome.failed = page;
      outcome.state = state;
      return false;
    };
    if (!storage) {
      return true;  // the next to look will hear of its death
    }
    switch (carried.move.act) {
      case Act::start_evict:
        return spill->start_evict(page, storage) || failed(State::resident);
      case Act::drop:
        if (!carried.program->hold()) {
          return failed(State::resident);
        }
        [[fallthrough]];
      case Act::release:
        at::native::resize_bytes_cpu(storage.get(), 0);
        return true;
      case Act::recompute:
        return recompute(carried, storage, outcome) || failed(State::dropped);
      case Act::start_fetch:
        at::native::resize_bytes_cpu(storage.get(), static_cast<size_t>(carried.nbytes));
        spill->start_fetch(page, storage, std::any_of(next + 1, moves.end(), [&](const Carried& later) {
          return later.move.page == page && later.move.act == Act::finish_fetch;
        }));
        return true;
      default:
        break;
    }
    const std::optional<int> failure = spill->finish(page, patience);
    if (!failure || *failure == none) {
      return failure.has_value();
    }
    if (carried.move.act == Act::finish_fetch) {
      at::native::resize_bytes_cpu(storage.get(), 0);
      return failed(State::evicted);
    }
    spill->discard(page);
    return failed(State::resident);
  }

  static bool recompute(const Carried& carried, const Held& storage, Outcome& outcome) {
    outcome.spent.push_back({no_page, 0, now_s(), {}});
    try {
      carried.program->run(storage, carried.nbytes);
    } catch (const std::exception&) {  // no memory, most likely: Python tries again, and tells
      return false;
    }
    outcome.spent.push_back({carried.move.page, carried.nbytes, now_s(), {}});
    return true;
  }

  // The host waits for nothing here.
  void perform_on_device(
      const std::vector<Carried>& moves, const std::vector<Held>& storages, int64_t so_far, Outcome& outcome) const {
    outcome.began = outcome.ended = lanes->mark(tick + so_far);
    for (const Held& storage : storages) {
      if (storage && !perform_on_device(moves[outcome.count], storage, outcome)) {
        return;  // of a dead one, the next to look will hear
      }
      ++outcome.count;
    }
    std::set<PageId> moved;
    for (size_t place = 0; place < moves.size(); ++place) {
      const Carried& carried = moves[place];
      if (storages[place] && moved.insert(carried.move.page).second) {
        if (carried.is_used && lanes->use(carried.move.page, storages[place])) {
          outcome.ended = lanes->now();
        }
        know(carried.move.page, outcome);
      }
    }
    outcome.is_all = true;
  }

  bool perform_on_device(const Carried& carried, const Held& storage, Outcome& outcome) const {
    const PageId page = carried.move.page;
    State otherwise = State::resident;
    try {
      switch (carried.move.act) {
        case Act::start_evict:
          is_born(carried);
          if (lanes->start_evict(page, storage, carried.last_use)) {
            return true;
          }
          break;
        case Act::finish_evict:
          outcome.ended = lanes->finish_evict(page, outcome.ended);
          return true;
        case Act::release:
          otherwise = State::clean;
          release(page, storage, outcome);
          return true;
        case Act::start_fetch:
          otherwise = State::evicted;
          lanes->start_fetch(page, storage);
          return true;
        case Act::finish_fetch:
          otherwise = State::evicted;
          outcome.ended = lanes->finish_fetch(page, outcome.ended);
          return true;
        case Act::drop:
          is_born(carried);
          if (carried.program->hold()) {
            release(page, storage, outcome);
            return true;
          }
          break;
        case Act::recompute:
          otherwise = State::dropped;
          recompute_on_device(carried, storage, outcome);
          return true;
        case Act::discard:
          break;
      }
    } catch (const std::exception&) {  // Python tries again, and tells
    }
    outcome.failed = page;
    outcome.state = otherwise;
    return false;
  }

  void release(PageId page, const Held& storage, Outcome& outcome) const {
    if (lanes->release(page, storage)) {
      outcome.ended = lanes->now();
    }
  }

  void recompute_on_device(const Carried& carried, const Held& storage, Outcome& outcome) const {
    const PageId page = carried.move.page;
    outcome.spent.push_back({no_page, 0, now_s(), outcome.ended});
    for (const auto& [input, home] : carried.homes) {
      lanes->born(input, home);
    }
    std::vector<PageId> inputs;
    const StreamId before = lanes->begin_recompute(page);
    try {
      for (const Program::Input& input : carried.program->inputs()) {
        inputs.push_back(input.page);
        lanes->use(input.page, input.storage);
      }
      carried.program->run(storage, carried.nbytes);
    } catch (...) {
      lanes->end_recompute(page, inputs, before, /*is_done=*/false);
      throw;
    }
    outcome.ended = lanes->end_recompute(page, inputs, before, /*is_done=*/true);
    for (const Program::Input& input : carried.program->inputs()) {
      know(input.page, outcome);
    }
    outcome.spent.push_back({page, carried.nbytes, now_s(), outcome.ended});
  }

  void is_born(const Carried& carried) const {
    if (carried.home) {
      lanes->born(carried.move.page, *carried.home);
    }
  }

  // On which streams the page may be used now.
  void know(PageId page, Outcome& outcome) const {
    outcome.streams.emplace_back(page, lanes->streams_of(page));
  }
};

}  // namespace torch_lms
