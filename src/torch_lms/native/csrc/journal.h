// What happened while Python was not asked: written in C++, read by `engine.step_record` if anybody asks for the step.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace torch_lms {

using PageId = int64_t;
constexpr PageId no_page = -1;
constexpr int no_number = -1;

// The uses of a page since Python last heard of them.
struct Touch {
  uint64_t at = 0;    // the last one, in the order of all touches
  int64_t tick = 0;   // its operation, counted from where Python handed over
  int64_t writes = 0;
};

// As `engine/step_record.py` has it.
enum class What : int8_t {
  begins = 0,   // the operation at a position of the plan, and the bytes on the device
  uses = 1,     // a page, by the operation that began last
  created = 2,  // a page, and its bytes
  wrote = 3,    // a page, by the operation that ends next
  ends = 4,
  died = 5,  // a page
  moved = 6,  // pages, for the operation that began last, until then: bytes in host memory, and on disk
  spent = 7,  // time, before that and until then, on recomputing a page; on waiting, if there is none
};

class Moment;

// The clock of Python's time.perf_counter.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Event {
  What what;
  int64_t which;
  int64_t nbytes;
  double at_s;
};

class Journal {
 public:
  void begins(int64_t position, int64_t resident_bytes) {
    events_.push_back({What::begins, position, resident_bytes, now_s()});
  }
  // When it did on a stream.
  void begins_at(int64_t position, std::shared_ptr<Moment> moment) {
    begun_.resize(static_cast<size_t>(position) + 1);
    begun_.back() = std::move(moment);
  }
  void uses(PageId page) {
    events_.push_back({What::uses, page, 0, 0});
  }
  void created(PageId page, int64_t nbytes) {
    events_.push_back({What::created, page, nbytes, 0});
  }
  void wrote(PageId page) {
    events_.push_back({What::wrote, page, 0, 0});
  }
  void ends() {
    events_.push_back({What::ends, 0, 0, 0});
  }
  void died(PageId page) {
    events_.push_back({What::died, page, 0, 0});
  }
  void moved(int64_t host_bytes, int64_t disk_bytes) {
    events_.push_back({What::moved, host_bytes, disk_bytes, now_s()});
  }
  // The same on a stream, from one moment to another.
  void moved(int64_t host_bytes, int64_t disk_bytes, std::shared_ptr<Moment> began, std::shared_ptr<Moment> ended) {
    moved(host_bytes, disk_bytes);
    moments_.emplace_back(std::move(began), std::move(ended));
  }
  void spent(PageId page, int64_t nbytes, double until_s, std::shared_ptr<Moment> until) {
    events_.push_back({What::spent, page, nbytes, until_s});
    if (until) {
      marks_.push_back(std::move(until));
    }
  }
  // Forget all that came after it had this size.
  void shrink(size_t size) {
    for (; events_.size() > size; events_.pop_back()) {
      const What what = events_.back().what;
      if (what == What::moved && !moments_.empty()) {
        moments_.pop_back();
      } else if (what == What::spent && !marks_.empty()) {
        marks_.pop_back();
      } else if (what == What::begins) {
        begun_.resize(std::min(begun_.size(), static_cast<size_t>(events_.back().which)));
      }
    }
  }
  const std::vector<Event>& events() const {
    return events_;
  }
  // When pages moved on a stream, for each such event.
  const std::vector<std::pair<std::shared_ptr<Moment>, std::shared_ptr<Moment>>>& moments() const {
    return moments_;
  }
  // When operations began on a stream, by their positions; null where that was not noted.
  const std::vector<std::shared_ptr<Moment>>& begun() const {
    return begun_;
  }
  // Until when time was spent, for each such event, on a stream.
  const std::vector<std::shared_ptr<Moment>>& marks() const {
    return marks_;
  }

 private:
  std::vector<Event> events_;
  std::vector<std::pair<std::shared_ptr<Moment>, std::shared_ptr<Moment>>> moments_;
  std::vector<std::shared_ptr<Moment>> marks_;
  std::vector<std::shared_ptr<Moment>> begun_;
};

}  // namespace torch_lms
