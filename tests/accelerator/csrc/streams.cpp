#include "streams.h"

#include <array>
#include <chrono>
#include <thread>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

namespace accelerator {
namespace {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

struct Schedule {
  Pace pace = Pace::eager;
  uint64_t seed = 0;
};

std::mutex schedule_mutex;
Schedule schedule;

std::mutex failure_mutex;
std::string failure;

// Never destroyed: their threads run until the process ends.
using Queues = std::array<std::array<Queue, kStreams>, kDevices>;

Queues& queues() {
  static auto* found = new Queues();
  return *found;
}

Pace drawn(Pace pace, std::mt19937_64& random) {
  constexpr std::array paces = {Pace::eager, Pace::delayed, Pace::lazy};
  return pace == Pace::mixed ? paces[random() % paces.size()] : pace;
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

thread_local c10::DeviceIndex device_now = 0;
thread_local std::array<c10::StreamId, kDevices> streams_now = {};
std::atomic<int64_t> streams_made{0};

} // namespace

// -- queues -----------------------------------------------------------------------------------------------------------

uint64_t Queue::submit(Work work, const std::string& what, const Uses& uses) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!is_running_) {
    is_running_ = true;
    std::thread([this] { run(); }).detach();
  }
  work_.push_back(std::move(work));
  wake_.notify_one();
  was_given(number(), ++given_, what, uses);
  return given_;
}

void Queue::run() {
  at::set_num_threads(1); // there are as many threads as streams
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return !work_.empty() && (pace_ != Pace::lazy || done_ < demanded_); });
    Work work = std::move(work_.front());
    work_.pop_front();
    const bool pauses = pace_ == Pace::delayed && random_() % 4 == 0;
    const auto pause = std::chrono::microseconds(pauses ? random_() % 2000 : 0);
    lock.unlock();
    if (pauses) {
      std::this_thread::sleep_for(pause);
    }
    try {
      work();
    } catch (const c10::Error& error) {
      fail(error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail(error.what());
    }
    work = nullptr; // not under the lock: it may hold tensors
    lock.lock();
    ++done_;
    finished_.notify_all();
  }
}

void Queue::demand(uint64_t place) {
  demanded_ = std::max(demanded_, place);
  wake_.notify_one();
}

bool Queue::reached(uint64_t place) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (done_ < place && random_() % 8 == 0) {
    demand(place);
  }
  return done_ >= place;
}

void Queue::wait(uint64_t place) {
  std::unique_lock<std::mutex> lock(mutex_);
  demand(place);
  finished_.wait(lock, [&] { return done_ >= place; });
}

void Queue::finish() {
  const auto until = clock();
  wait(end());
  comes_after(kHost, until);
}

bool Queue::is_idle() {
  const auto until = clock();
  const bool is_so = reached(end());
  if (is_so) {
    comes_after(kHost, until);
  }
  return is_so;
}

Clock Queue::clock() const {
  return clock_of(number());
}

void Queue::follows(const Clock& clock) const {
  comes_after(number(), clock);
}

int Queue::number() const {
  return static_cast<int>(this - queues().front().data()); // they lie one behind the other
}

uint64_t Queue::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  return given_;
}

void Queue::set_pace(Pace pace, uint64_t seed) {
  std::lock_guard<std::mutex> lock(mutex_);
  random_.seed(seed);
  pace_ = drawn(pace, random_);
  wake_.notify_one();
}

void set_schedule(Pace pace, uint64_t seed) {
  std::lock_guard<std::mutex> lock(schedule_mutex);
  schedule = {pace, seed};
  for (auto& device : queues()) {
    for (auto& queue : device) {
      queue.set_pace(pace, ++seed);
    }
  }
}

// -- events -----------------------------------------------------------------------------------------------------------

void Event::record(Queue& on) {
  queue = &on;
  reached_ns = std::make_shared<std::atomic<int64_t>>(0);
  place = on.submit([at = reached_ns] { *at = now_ns(); });
  clock = std::make_shared<const Clock>(on.clock());
}

void Event::block(Queue& waiting) const {
  if (queue != nullptr && queue != &waiting) {
    waiting.submit([from = queue, until = place] { from->wait(until); });
    waiting.follows(*clock);
  }
}

bool Event::reached() const {
  const bool is_so = is_over();
  if (is_so && queue != nullptr) {
    comes_after(kHost, *clock);
  }
  return is_so;
}

bool Event::is_over() const {
  return queue == nullptr || queue->reached(place);
}

void Event::wait() const {
  if (queue != nullptr) {
    queue->wait(place);
    comes_after(kHost, *clock);
  }
}

// -- streams ----------------------------------------------------------------------------------------------------------

Queue& queue_of(c10::DeviceIndex device, c10::StreamId stream) {
  return queues().at(device).at(stream);
}

Queue& queue_of(const c10::Stream& stream) {
  return queue_of(stream.device_index(), stream.id());
}

c10::DeviceIndex current_device() {
  return device_now;
}

void set_current_device(c10::DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no device ", static_cast<int>(device));
  device_now = device;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  const auto index = device < 0 ? device_now : device;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, index), streams_now.at(index));
}

void set_current_stream(const c10::Stream& stream) {
  streams_now.at(stream.device_index()) = stream.id();
}

c10::Stream new_stream(c10::DeviceIndex device) {
  const auto index = device < 0 ? device_now : device;
  const c10::StreamId id = 1 + streams_made++ % (kStreams - 1);
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDevice, index), id);
}

Queue& current_queue() {
  return queue_of(current_stream(device_now));
}

void synchronize(c10::DeviceIndex device) {
  for (auto& queue : queues().at(device < 0 ? device_now : device)) {
    queue.finish();
  }
  raise_failure();
}

// -- failures ---------------------------------------------------------------------------------------------------------

void fail(const std::string& what) {
  std::lock_guard<std::mutex> lock(failure_mutex);
  if (failure.empty()) {
    failure = what;
  }
}

void raise_failure() {
  std::string what;
  {
    std::lock_guard<std::mutex> lock(failure_mutex);
    std::swap(what, failure);
  }
  TORCH_CHECK(what.empty(), "a kernel failed on the device: ", what);
}

} // namespace accelerator
