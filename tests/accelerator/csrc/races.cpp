#include "races.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace accelerator {
namespace {

constexpr size_t kMost = 100; // races are told

// Where it was used: the work of that place in that queue.
struct Place {
  int queue;
  uint64_t place;
  std::string what;
  bool writes;

  bool is_before(const Clock& clock) const {
    return clock[static_cast<size_t>(queue)] >= place;
  }
};

// Bytes that were used alike.
struct Range {
  uintptr_t end;
  std::vector<Place> writes; // the last one, if there was any
  std::vector<Place> reads; // since then, the last one of each queue
};

std::mutex mutex;
bool watches = false;
std::array<Clock, kQueues> clocks = {};
Clock host = {};
std::map<uintptr_t, Range> ranges; // by where they begin; they do not overlap
std::map<std::pair<int, uint64_t>, std::string> torn; // copies, by where they were made: why they are worth nothing
std::set<std::string> found;

void merge(Clock& clock, const Clock& other) {
  std::transform(clock.begin(), clock.end(), other.begin(), clock.begin(), [](auto one, auto two) { return std::max(one, two); });
}

// Cut the range in two that `address` lies in.
void cut(uintptr_t address) {
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) {
    return;
  }
  const auto at = std::prev(next);
  if (at->first < address && address < at->second.end) {
    Range rest = at->second;
    at->second.end = address;
    ranges.emplace(address, std::move(rest));
  }
}

std::string told(const Place& place) {
  const auto* does = place.writes ? " writes on queue " : " reads on queue ";
  return place.what + does + std::to_string(place.queue) + " at " + std::to_string(place.place);
}

void tell(const std::string& race) {
  if (found.size() < kMost) {
    found.insert(race);
  }
}

void check(const std::vector<Place>& earlier, const Place& now, const Clock& clock) {
  for (const auto& one : earlier) {
    if (one.queue == now.queue || one.is_before(clock)) {
      continue;
    }
    const auto race = told(now) + " without waiting for " + told(one);
    if (one.what == kToHost && !one.writes) {
      torn[{one.queue, one.place}] = race;
    } else {
      tell(race);
    }
  }
}

// It reads what these have written.
void check_whole(const std::vector<Place>& writes) {
  for (const auto& one : writes) {
    const auto why = torn.find({one.queue, one.place});
    if (why != torn.end()) {
      tell(why->second + ", and that copy is read");
    }
  }
}

void use(Range& range, const Place& now, const Clock& clock) {
  check(range.writes, now, clock);
  if (now.writes) {
    check(range.reads, now, clock);
    range.writes = {now};
    range.reads.clear();
    return;
  }
  check_whole(range.writes);
  auto& reads = range.reads;  // in C++17, as PyTorch 2.11 has its extensions compiled
  const auto is_older = [&](const Place& one) { return one.queue == now.queue; };
  reads.erase(std::remove_if(reads.begin(), reads.end(), is_older), reads.end());
  reads.push_back(now);
}

void use(const Use& its, const Place& now, const Clock& clock) {
  const auto begin = reinterpret_cast<uintptr_t>(its.begin);
  const auto end = begin + its.nbytes;
  cut(begin);
  cut(end);
  auto at = begin;
  for (auto next = ranges.lower_bound(begin); at < end; next = ranges.lower_bound(at)) {
    if (next == ranges.end() || next->first > at) { // not used before
      const auto until = next == ranges.end() ? end : std::min(end, next->first);
      next = ranges.emplace(at, Range{until, {}, {}}).first;
    }
    use(next->second, now, clock);
    at = next->second.end;
  }
}

} // namespace

void watch_races(bool is_on) {
  std::lock_guard<std::mutex> lock(mutex);
  watches = is_on;
  clocks = {};
  host = {};
  ranges.clear();
  torn.clear();
  found.clear();
}

std::vector<std::string> take_races() {
  std::lock_guard<std::mutex> lock(mutex);
  const auto taken = std::exchange(found, {});
  return {taken.begin(), taken.end()};
}

void was_given(int queue, uint64_t place, const std::string& what, const Uses& uses) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!watches) {
    return;
  }
  Clock& clock = clocks[static_cast<size_t>(queue)];
  merge(clock, host);
  clock[static_cast<size_t>(queue)] = place;
  for (const Use& its : uses) {
    if (its.nbytes > 0) {
      use(its, {queue, place, what, its.writes}, clock);
    }
  }
}

Clock clock_of(int queue) {
  std::lock_guard<std::mutex> lock(mutex);
  return clocks[static_cast<size_t>(queue)];
}

void comes_after(int queue, const Clock& clock) {
  std::lock_guard<std::mutex> lock(mutex);
  merge(queue == kHost ? host : clocks[static_cast<size_t>(queue)], clock);
}

} // namespace accelerator
