// Performs a plan's moves of pages of the CPU, without Python. What is not plain is Python's: files that were loaded, memory
// that is not PyTorch's own, pages that are dropped and recomputed, copies that take long.

#pragma once

#include "moving.h"

namespace torch_lms {

// A move, with all that has to be known of its page.
struct Carried {
  Move move;
  int64_t nbytes = 0;
  int tier = no_tier;  // of its lower copy
  c10::weak_intrusive_ptr<c10::StorageImpl> alive{Held()};
};

// How moves went: how many were performed; after the next the page `failed` is in `state`, if that is not as it was.
struct Outcome {
  size_t count = 0;
  PageId failed = no_page;
  State state = State::other;
};

struct Carrier {
  std::shared_ptr<Spill> spill;  // null: all moves are Python's
  int tier = no_tier;            // its number
  int64_t most_made = 0;         // bytes that are created, until Python looks at the heap
  double until_s = 0;            // when it asks again how much room there is, if that is short

  // No lock is held: to hold a storage, or to let go of it, may need the GIL.
  Outcome perform(const std::vector<Carried>& moves) const {
    Outcome outcome;
    try {
      std::vector<Held> storages;
      for (const Carried& carried : moves) {
        storages.push_back(carried.alive.lock());
        if (!can(carried, storages.back())) {
          return outcome;
        }
      }
      while (outcome.count < moves.size() && perform(moves, storages[outcome.count], outcome)) {
        ++outcome.count;
      }
    } catch (const std::exception&) {  // no memory: Python tries again, and tells
    }
    spill->take_let_go();
    return outcome;
  }

 private:
  static constexpr std::chrono::microseconds patience{2000};  // after which Python waits, whom an interrupt reaches

  bool can(const Carried& carried, const Held& storage) const {
    const Act act = carried.move.act;
    const bool is_of_a_copy = act != Act::discard && act != Act::drop && act != Act::recompute;
    return is_of_a_copy && carried.tier == tier && (!storage || is_plain(*storage));
  }

  static bool is_plain(const c10::StorageImpl& storage) {
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
      case Act::release:
        at::native::resize_bytes_cpu(storage.get(), 0);
        return true;
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
};

}  // namespace torch_lms
