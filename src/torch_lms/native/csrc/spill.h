// Pages of the CPU on their way to a file and back, by threads that never need the GIL.
//
// The file is Python's (`stores/disk.py`), which grants parts of it. A page's copy is known here by the page's number.
// What is read is checked against a checksum taken when it was written. As `stores/copies.py` has it, but for one thing:
// pages that leave one after the other lie one after the other, and small ones are written at once.

#pragma once

#include "journal.h"

#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace torch_lms {

using Held = c10::intrusive_ptr<c10::StorageImpl>;

// Memory that begins on a page of the system, as direct I/O demands. Shared: with private memory, a fork during direct
// I/O can give the bytes that arrive to the wrong process.
class Bounce {
 public:
  static constexpr size_t nbytes = 1 << 20;

  Bounce() : memory_(mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) {
      throw std::bad_alloc();
    }
  }
  ~Bounce() {
    munmap(memory_, nbytes);
  }
  Bounce(const Bounce&) = delete;
  Bounce& operator=(const Bounce&) = delete;

  char* get() {
    return static_cast<char*>(memory_);
  }

 private:
  void* memory_;
};

// Free parts of a file, or of memory.
class Extents {
 public:
  void give(int64_t offset, int64_t length) {
    free_bytes_ += length;
    auto after = free_.lower_bound(offset);
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        offset = before->first;
        length += before->second;
        forget(before);
      }
    }
    if (after != free_.end() && offset + length == after->first) {
      length += after->second;
      forget(after);
    }
    add(offset, length);
  }

  // In the smallest part that holds it; -1 if none does. Small ones lie one after the other, in runs.
  int64_t take(int64_t length) {
    const bool is_small = length <= small_bytes;
    auto found = is_small && next_ + length <= run_end_ ? free_.find(next_) : free_.end();
    if (found == free_.end() || found->second < length) {
      found = smallest(is_small ? run_bytes : length);
      if (is_small && found != free_.end()) {
        run_end_ = found->first + run_bytes;
      } else if (is_small) {
        found = smallest(length);
      }
    }
    if (found == free_.end()) {
      return -1;
    }
    const auto [offset, whole] = *found;
    forget(found);
    if (whole > length) {
      add(offset + length, whole - length);
    }
    free_bytes_ -= length;
    if (is_small) {
      next_ = offset + length;
    }
    return offset;
  }

  // Whether all of this part is free: then it is not any more.
  bool take_away(int64_t offset, int64_t length) {
    auto found = free_.upper_bound(offset);
    if (found == free_.begin()) {
      return false;
    }
    const auto [begin, whole] = *--found;
    if (begin + whole < offset + length) {
      return false;
    }
    forget(found);
    if (begin < offset) {
      add(begin, offset - begin);
    }
    if (offset + length < begin + whole) {
      add(offset + length, begin + whole - offset - length);
    }
    free_bytes_ -= length;
    return true;
  }

  int64_t free_bytes() const {
    return free_bytes_;
  }

 private:
  static constexpr int64_t run_bytes = 1 << 20;
  static constexpr int64_t small_bytes = run_bytes / 4;

  std::map<int64_t, int64_t>::iterator smallest(int64_t length) {
    const auto found = by_size_.lower_bound({length, 0});
    return found == by_size_.end() ? free_.end() : free_.find(found->second);
  }

  void add(int64_t offset, int64_t length) {
    free_.emplace(offset, length);
    by_size_.emplace(length, offset);
  }

  void forget(std::map<int64_t, int64_t>::iterator part) {
    by_size_.erase({part->second, part->first});
    free_.erase(part);
  }

  std::map<int64_t, int64_t> free_;               // lengths by offset
  std::set<std::pair<int64_t, int64_t>> by_size_;  // lengths and offsets
  int64_t free_bytes_ = 0;
  int64_t next_ = 0;     // behind the last small one
  int64_t run_end_ = 0;
};

// Tells any other content of one word from this one for sure, and any other damage but for one in 2^64 cases.
inline uint64_t checksum(const char* bytes, size_t nbytes) {
  constexpr uint64_t prime = 0x9E3779B185EBCA87;
  std::array<uint64_t, 4> lanes = {prime, ~prime, prime >> 7, ~prime >> 7};
  const auto add = [](uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * prime;
    return (sum << 29) | (sum >> 35);
  };
  size_t at = 0;
  for (; at + 32 <= nbytes; at += 32) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), bytes + at, 32);
    for (size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = add(lanes[lane], words[lane]);
    }
  }
  uint64_t sum = nbytes;
  for (; at < nbytes; ++at) {
    sum = add(sum, static_cast<uint8_t>(bytes[at]));
  }
  for (const uint64_t lane : lanes) {
    sum = add(sum, lane);
  }
  return sum;
}

// How a copy failed: an error number of the system, or one of these. As `runtime/native_cpu.py` has it.
constexpr int none = 0;
constexpr int ends_early = -1;
constexpr int is_damaged = -2;

// A copy that ended.
struct Copied {
  bool is_up;
  double began_s;
  double ended_s;
  int64_t nbytes;
  PageId page;
};

// What tests do to all copies of this process, and to calls that are repeated.
class Tampering {
 public:
  // Asked before each read and write, with the GIL: how that fails.
  using Hindrance = std::function<int(bool is_read, int64_t nbytes)>;

  static void hinder(std::shared_ptr<const Hindrance> hindrance) {
    std::lock_guard<std::mutex> held(lock_);
    hindrance_.swap(hindrance);
  }

  static std::shared_ptr<const Hindrance> hindrance() {
    std::lock_guard<std::mutex> held(lock_);
    return hindrance_;
  }

  // Asked before each call is repeated, with the GIL: whether there is no memory for it.
  using Refusal = std::function<bool()>;

  static void refuse(std::shared_ptr<const Refusal> refusal) {
    std::lock_guard<std::mutex> held(lock_);
    refusal_.swap(refusal);
  }

  static void repeats() {
    std::shared_ptr<const Refusal> refusal;
    {
      std::lock_guard<std::mutex> held(lock_);
      refusal = refusal_;
    }
    TORCH_CHECK(!refusal || !(*refusal)(), "DefaultCPUAllocator: can't allocate memory (injected)");
  }

  // On a device with streams.
  static void fail() {
    if (fails_next.exchange(false)) {
      throw std::runtime_error("injected");
    }
  }

  inline static std::atomic<bool> fails_next = false;  // something does, once the next copy has been asked for
  inline static std::atomic<bool> is_silent = false;  // nobody hears what has landed before it is waited for

 private:
  inline static std::mutex lock_;
  inline static std::shared_ptr<const Hindrance> hindrance_;
  inline static std::shared_ptr<const Refusal> refusal_;
};

// Any thread may call any method.
class Spill {
 public:
  Spill(int fd, size_t threads) : fd_(fd) {
    // Signals are the program's.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    for (Lane& lane : lanes_) {
      for (size_t count = 0; count < threads && failed == 0; ++count) {
        auto worker = std::make_unique<Worker>(this, &lane);
        pthread_t thread;
        failed = pthread_create(&thread, &attributes, &serve, worker.get());
        if (failed == 0) {
          pthread_setname_np(thread, &lane == &lanes_[0] ? "lms-disk-out" : "lms-disk-in");
          workers_.push_back(std::move(worker));
          threads_.push_back(thread);
        }
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
      close();
      throw std::runtime_error(std::strerror(failed));
    }
  }

  ~Spill() {
    close();
  }
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;

  // Perform what was asked for, then end the threads.
  void close() {
    {
      std::lock_guard<std::mutex> held(lock_);
      is_closing_ = true;
    }
    for (Lane& lane : lanes_) {
      lane.has_work.notify_all();
    }
    for (const pthread_t thread : std::exchange(threads_, {})) {
      pthread_join(thread, nullptr);
    }
  }

  // Pages may be copied to this part of the file.
  void grant(int64_t offset, int64_t length) {
    std::lock_guard<std::mutex> held(lock_);
    extents_.give(offset, length);
  }

  // Of what was granted.
  int64_t free_bytes() {
    std::lock_guard<std::mutex> held(lock_);
    return extents_.free_bytes();
  }

  // Whether the page has a copy in the file, or is about to.
  bool has(PageId page) {
    std::lock_guard<std::mutex> held(lock_);
    return copies_.count(page) != 0;
  }

  // Start to copy the page down. Whether there is room for it.
  bool start_evict(PageId page, const Held& storage) {
    std::unique_lock<std::mutex> held(lock_);
    discard(held, page);  // there is one if an interrupt came before anybody was told of it
    const auto nbytes = static_cast<int64_t>(storage->nbytes());
    const auto length = static_cast<int64_t>((storage->nbytes() + grain - 1) / grain * grain);
    const int64_t offset = extents_.take(length);
    if (offset < 0) {
      return false;
    }
    auto& copy = copies_[page] = std::make_unique<Copy>();
    copy->page = page;
    copy->offset = offset;
    copy->length = length;
    copy->nbytes = nbytes;
    copy->checksums.resize(static_cast<size_t>((nbytes + chunk_bytes - 1) / chunk_bytes));
    start(*copy, storage, /*is_up=*/false, /*is_awaited=*/false);
    return true;
  }

  // Start to copy it up, into the memory that its storage has again. `is_awaited`: who asks is about to wait for it, and
  // has a small one sooner alone.
  void start_fetch(PageId page, const Held& storage, bool is_awaited) {
    std::unique_lock<std::mutex> held(lock_);
    const auto found = copies_.find(page);
    if (found != copies_.end()) {
      Copy& copy = *found->second;
      settle(held, copy);  // as above
      start(copy, storage, /*is_up=*/true, is_awaited);
    }
  }

  // Wait until its copy has ended, at most so long. How it failed; none if it is still under way.
  std::optional<int> finish(PageId page, std::chrono::microseconds patience) {
    std::unique_lock<std::mutex> held(lock_);
    const auto found = copies_.find(page);
    if (found == copies_.end() || !found->second->storage) {
      return none;
    }
    Copy& copy = *found->second;
    if (copy.chunks_left != 0) {
      const double since_s = now_s();
      const auto until = std::chrono::steady_clock::now() + patience;
      help(held, copy, until);
      hurry_for(copy);
      has_ended_.wait_until(held, until, [&] { return copy.chunks_left == 0; });
      stalled_s_ += now_s() - since_s;
    }
    if (copy.chunks_left != 0) {
      return std::nullopt;
    }
    let_go(copy);
    if (copy.failure == none) {
      copied_.push_back({copy.is_up, copy.began_s, copy.ended_s, copy.nbytes, page});
    }
    return copy.failure;
  }

  // Give up its copy. Whether it had one.
  bool discard(PageId page) {
    std::unique_lock<std::mutex> held(lock_);
    return discard(held, page);
  }

  // Where its copy is in the file, and whether it comes or leaves.
  std::pair<int64_t, bool> place(PageId page) {
    std::lock_guard<std::mutex> held(lock_);
    const auto found = copies_.find(page);
    return found == copies_.end() ? std::pair{int64_t{-1}, false} : std::pair{found->second->offset, found->second->is_up};
  }

  // Pages whose copies have ended, though nobody waited for that.
  std::vector<PageId> landed() {
    std::lock_guard<std::mutex> held(lock_);
    std::vector<PageId> pages;
    for (Lane& lane : lanes_) {
      lane.hurry_if_late();
    }
    for (const Copy* copy : under_way_) {
      if (copy->chunks_left == 0 && !Tampering::is_silent) {
        pages.push_back(copy->page);
      }
    }
    return pages;
  }

  size_t made() {
    std::lock_guard<std::mutex> held(lock_);
    return copied_.size();
  }

  std::vector<Copied> take_copied() {
    std::lock_guard<std::mutex> held(lock_);
    return std::exchange(copied_, {});
  }

  // Seconds of a processor that copies beside the program took, and how long they lasted: each direction by itself.
  std::pair<double, double> effort() {
    std::lock_guard<std::mutex> held(lock_);
    return {worked_s_, lasted_s_};
  }

  // Seconds in which somebody waited, since this was last asked.
  double take_stalled_s() {
    std::lock_guard<std::mutex> held(lock_);
    return std::exchange(stalled_s_, 0);
  }

  // Storages that copies no longer hold. To let go of the last reference may need the GIL.
  std::vector<Held> take_let_go() {
    std::lock_guard<std::mutex> held(lock_);
    return std::exchange(let_go_, {});
  }

 private:
  static constexpr size_t grain = 4096;  // offsets, lengths and addresses that direct I/O takes on any disk
  static constexpr int64_t chunk_bytes = Bounce::nbytes;
  static constexpr int64_t worthwhile_bytes = 512 << 10;  // as `planner/fetches.py` has pages asked for
  static constexpr double most_left_s = 0.001;
  static constexpr size_t most_passed_over = Bounce::nbytes / grain;
  static constexpr size_t stack_bytes = 512 << 10;

  struct Copy {
    PageId page = no_page;
    int64_t offset = 0;
    int64_t length = 0;
    int64_t nbytes = 0;
    c10::SmallVector<uint64_t, 1> checksums;  // of its chunks
    // Of the latest copy:
    bool is_up = false;
    Held storage;  // held while it is under way
    char* memory = nullptr;
    size_t chunks_left = 0;
    int failure = none;
    double began_s = 0;
    double ended_s = 0;
  };

  struct Chunk {
    Copy* copy;
    size_t index;
    int failure = none;

    int64_t begin() const {  // in the page
      return static_cast<int64_t>(index) * chunk_bytes;
    }
    char* memory() const {
      return copy->memory + begin();
    }
    size_t nbytes() const {
      return static_cast<size_t>(std::min(chunk_bytes, copy->nbytes - begin()));
    }
    size_t length() const {  // in the file
      return (nbytes() + grain - 1) / grain * grain;
    }
    int64_t at() const {
      return copy->offset + begin();
    }
    int64_t end() const {
      return at() + static_cast<int64_t>(length());
    }
    uint64_t& checksum() const {
      return copy->checksums[index];
    }
  };

  using Batch = std::vector<Chunk>;

  // Copies in one direction, first come, first served. A thread that wakes takes a core from the program. So few bytes of
  // small pages are left for a while: until there are more, or somebody waits for them. They are one thread's.
  struct Lane {
    std::deque<Chunk> queue;
    int64_t queued_bytes = 0;
    size_t urgent = 0;        // the first of them, which are not left
    double left_since_s = 0;  // when the others were queued, or one was taken
    int busy = 0;             // threads
    double busy_since_s = 0;  // when the first of them began
    std::condition_variable has_work;

    bool has_work_for_another() const {
      return busy == 0 ? urgent > 0 || queued_bytes >= worthwhile_bytes : queued_bytes >= chunk_bytes;
    }
    void push(const Chunk& chunk) {
      if (queue.empty()) {
        left_since_s = now_s();
      }
      queue.push_back(chunk);
      queued_bytes += static_cast<int64_t>(chunk.nbytes());
    }
    Chunk take(size_t place) {
      const Chunk chunk = queue[place];
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(place));
      queued_bytes -= static_cast<int64_t>(chunk.nbytes());
      urgent -= place < urgent;
      left_since_s = now_s();
      return chunk;
    }
    // The place of a chunk of this copy that nobody performs yet.
    std::optional<size_t> find(const Copy& copy) const {
      if (copy.chunks_left == 0) {
        return std::nullopt;
      }
      const auto found = std::find_if(
          queue.begin(), queue.end(), [&](const Chunk& chunk) { return chunk.copy == &copy; });
      return found == queue.end() ? std::nullopt : std::optional<size_t>(found - queue.begin());
    }
    void hurry() {
      urgent = queue.size();
      has_work.notify_one();
    }
    void hurry_if_late() {
      if (!queue.empty() && busy == 0 && now_s() - left_since_s > most_left_s) {
        hurry();
      }
    }
  };

  struct Worker {
    Worker(Spill* spill, Lane* lane) : spill(spill), lane(lane) {
      batch.reserve(Bounce::nbytes / grain);  // nothing is allocated later, on its thread
    }
    Spill* spill;
    Lane* lane;
    Bounce bounce = {};
    Batch batch = {};
  };

  // Of the calling thread, so far.
  static double processor_s() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  static void* serve(void* given) {
    auto& worker = *static_cast<Worker*>(given);
    worker.spill->serve(worker);
    return nullptr;
  }

  void serve(Worker& worker) {
    std::unique_lock<std::mutex> held(lock_);
    Lane& lane = *worker.lane;
    while (true) {
      lane.has_work.wait(held, [&] { return is_closing_ || lane.has_work_for_another(); });
      if (lane.queue.empty()) {
        return;
      }
      const double before_s = processor_s();
      if (lane.busy++ == 0) {
        lane.busy_since_s = now_s();
      }
      next(lane, 0, chunk_bytes, worker.batch);
      perform(held, worker.batch, worker.bounce);
      worked_s_ += processor_s() - before_s;
      if (--lane.busy == 0) {
        lasted_s_ += now_s() - lane.busy_since_s;
      }
    }
  }

  // The chunk at this place of the queue, and of those behind it what is written right after it, or read with it at once:
  // at most so many bytes, of which half are wanted.
  static void next(Lane& lane, size_t place, int64_t most, Batch& batch) {
    batch.assign(1, lane.take(place));
    const bool is_up = batch.front().copy->is_up;
    int64_t begin = batch.front().at();
    int64_t end = batch.front().end();
    int64_t wanted = end - begin;
    const size_t last = place + most_passed_over;
    while (place < std::min(lane.queue.size(), last) && end - begin < most) {
      const Chunk& chunk = lane.queue[place];
      const int64_t from = std::min(begin, chunk.at());
      const int64_t to = std::max(end, chunk.end());
      const int64_t with_it = wanted + chunk.end() - chunk.at();
      if (to - from <= most && (is_up ? to - from <= 2 * with_it : chunk.at() == end)) {
        batch.push_back(lane.take(place));
        begin = from;
        end = to;
        wanted = with_it;
      } else if (is_up) {
        ++place;
      } else {
        return;
      }
    }
  }

  void start(Copy& copy, const Held& storage, bool is_up, bool is_awaited) {
    copy.is_up = is_up;
    copy.storage = storage;
    copy.memory = static_cast<char*>(const_cast<void*>(storage->data()));
    copy.chunks_left = copy.checksums.size();
    copy.failure = none;
    copy.began_s = copy.ended_s = 0;
    under_way_.push_back(&copy);
    Lane& lane = lanes_[is_up];
    const bool is_small = copy.checksums.size() == 1;
    for (size_t index = 0; index < copy.checksums.size(); ++index) {
      lane.push({&copy, index});
      lane.urgent = is_small ? lane.urgent : lane.queue.size();
      if (lane.has_work_for_another() && !(is_small && is_awaited)) {
        lane.has_work.notify_one();
      }
    }
  }

  bool discard(std::unique_lock<std::mutex>& held, PageId page) {
    const auto found = copies_.find(page);
    if (found == copies_.end()) {
      return false;
    }
    Copy& copy = *found->second;
    Lane& lane = lanes_[copy.is_up];
    while (const auto place = lane.find(copy)) {
      lane.take(*place);
      --copy.chunks_left;
    }
    settle(held, copy);
    extents_.give(copy.offset, copy.length);
    copies_.erase(page);
    return true;
  }

  // Wait for the end of what is under way, however it turns out.
  void settle(std::unique_lock<std::mutex>& held, Copy& copy) {
    hurry_for(copy);
    has_ended_.wait(held, [&] { return copy.chunks_left == 0; });
    if (copy.storage) {
      let_go(copy);
    }
  }

  void hurry_for(const Copy& copy) {
    Lane& lane = lanes_[copy.is_up];
    if (lane.find(copy)) {
      lane.hurry();
    }
  }

  void let_go(Copy& copy) {
    std::erase(under_way_, &copy);
    let_go_.push_back(std::move(copy.storage));
    copy.storage = Held();
  }

  // Whoever waits for a copy performs what nobody has begun.
  void help(std::unique_lock<std::mutex>& held, Copy& copy, std::chrono::steady_clock::time_point until) {
    Lane& lane = lanes_[copy.is_up];
    while (!Tampering::hindrance() && !is_helping_ && std::chrono::steady_clock::now() < until) {
      const auto place = lane.find(copy);
      if (!place) {
        return;
      }
      is_helping_ = true;
      next(lane, *place, worthwhile_bytes, helped_);
      perform(held, helped_, helper_);
      is_helping_ = false;
    }
  }

  void perform(std::unique_lock<std::mutex>& held, Batch& batch, Bounce& bounce) {
    const Copy& first = *batch.front().copy;
    const bool is_up = first.is_up;
    const double began_s = now_s();
    if (batch.size() > 1 || first.failure == none) {  // after one failed chunk the others are pointless
      held.unlock();
      if (is_up) {
        read(batch, bounce.get());
      } else {
        write(batch, bounce.get());
      }
      held.lock();
    }
    for (const Chunk& chunk : batch) {
      Copy& copy = *chunk.copy;
      copy.began_s = copy.began_s == 0 ? began_s : copy.began_s;
      copy.failure = copy.failure == none ? chunk.failure : copy.failure;
      if (--copy.chunks_left == 0) {
        copy.ended_s = now_s();
      }
    }
    has_ended_.notify_all();
  }

  void write(std::span<Chunk> chunks, char* bounce) const {
    const int64_t at = chunks.front().at();
    for (const Chunk& chunk : chunks) {
      char* part = bounce + (chunk.at() - at);
      std::memcpy(part, chunk.memory(), chunk.nbytes());
      std::memset(part + chunk.nbytes(), 0, chunk.length() - chunk.nbytes());
      chunk.checksum() = checksum(part, chunk.nbytes());
    }
    const auto length = static_cast<size_t>(chunks.back().end() - at);
    const int failure = hindered(/*is_up=*/false, chunks.front(), [&] {
      return every_byte(length, [&](size_t done) {
        return pwrite(fd_, bounce + done, length - done, at + static_cast<int64_t>(done));
      });
    });
    for (Chunk& chunk : chunks) {
      chunk.failure = failure;
    }
  }

  // At once. If that fails, one by one: it may be the fault of some.
  void read(std::span<Chunk> chunks, char* bounce) const {
    const auto by_place = [](const Chunk& one, const Chunk& other) { return one.at() < other.at(); };
    const auto [first, last] = std::minmax_element(chunks.begin(), chunks.end(), by_place);
    const int64_t at = first->at();
    const auto length = static_cast<size_t>(last->end() - at);
    const int failure = hindered(/*is_up=*/true, chunks.front(), [&] {
      return every_byte(length, [&](size_t done) {
        return pread(fd_, bounce + done, length - done, at + static_cast<int64_t>(done));
      });
    });
    for (size_t place = 0; place < chunks.size(); ++place) {
      Chunk& chunk = chunks[place];
      const char* part = bounce + (chunk.at() - at);
      if (failure != none && chunks.size() > 1) {
        read(chunks.subspan(place, 1), bounce);
      } else if (failure != none || checksum(part, chunk.nbytes()) != chunk.checksum()) {
        chunk.failure = failure != none ? failure : is_damaged;
      } else {
        std::memcpy(chunk.memory(), part, chunk.nbytes());
      }
    }
  }

  // How `move` failed, or tests had it fail.
  template <typename Move>
  static int hindered(bool is_up, const Chunk& chunk, const Move& move) {
    if (const auto hindrance = Tampering::hindrance()) {
      try {
        if (const int failure = (*hindrance)(is_up, static_cast<int64_t>(chunk.nbytes())); failure != none) {
          return failure;
        }
      } catch (const std::exception&) {
        return EIO;
      }
    }
    return move();
  }

  // Calls `move` until `nbytes` are moved. How that failed.
  template <typename Move>
  static int every_byte(size_t nbytes, const Move& move) {
    for (size_t done = 0; done < nbytes;) {
      const ssize_t count = move(done);
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        return count < 0 ? errno : ends_early;
      }
      done += static_cast<size_t>(count);
    }
    return none;
  }

  const int fd_;
  std::mutex lock_;
  std::condition_variable has_ended_;
  std::array<Lane, 2> lanes_;  // down, up
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<pthread_t> threads_;
  bool is_closing_ = false;
  Extents extents_;
  std::unordered_map<PageId, std::unique_ptr<Copy>> copies_;
  std::vector<Copy*> under_way_;
  std::vector<Copied> copied_;
  std::vector<Held> let_go_;
  double stalled_s_ = 0;
  double worked_s_ = 0;
  double lasted_s_ = 0;
  bool is_helping_ = false;
  Batch helped_;
  Bounce helper_;
};

}  // namespace torch_lms
