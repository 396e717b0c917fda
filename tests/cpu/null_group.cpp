// A process group that behaves as NCCL's does: what is not asynchronous returns no work, and neither does what is
// coalesced, of which only the end returns one. Its transfers end when they are told to.

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

namespace {

using c10d::Work;
using Tensors = std::vector<at::Tensor>;

struct Transfer : Work {
  bool ended = false;
  bool isCompleted() override { return ended; }
  bool wait(std::chrono::milliseconds) override { return ended = true; }
};

class NullBackend : public c10d::Backend {
 public:
  NullBackend(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "null"; }

  c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    for (auto& tensor : tensors) tensor.mul_(2);  // as if another rank had the same
    return work(options.asyncOp);
  }
  c10::intrusive_ptr<Work> broadcast(Tensors&, const c10d::BroadcastOptions& options) override {
    return work(options.asyncOp);
  }
  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override { return work(options.asyncOp); }
  c10::intrusive_ptr<Work> send(Tensors&, int, int) override { return work(true); }
  c10::intrusive_ptr<Work> recv(Tensors& tensors, int, int) override {
    for (auto& tensor : tensors) tensor.fill_(7);
    return work(true);
  }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalescing_ = true; }
  c10::intrusive_ptr<Work> endCoalescing() override {
    coalescing_ = false;
    return last_ = c10::make_intrusive<Transfer>();
  }
  void finish() { if (last_) last_->ended = true; }

 private:
  c10::intrusive_ptr<Work> work(bool is_asynchronous) {
    if (coalescing_ || !is_asynchronous) return nullptr;
    return last_ = c10::make_intrusive<Transfer>();
  }
  bool coalescing_ = false;
  c10::intrusive_ptr<Transfer> last_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::module::import("torch.distributed");
  py::class_<NullBackend, c10::intrusive_ptr<NullBackend>, c10d::Backend>(module, "NullBackend")
      .def(py::init<int, int>())
      .def("finish", &NullBackend::finish);
}
