// A library of functions that are given tensors, and use their memory as kernels do: no operation shows it.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/utils/pybind.h>

namespace {

at::Tensor scaled(const at::Tensor& given, double factor) {
  at::Tensor first = at::empty_like(given);
  at::Tensor made = at::empty_like(given);  // what was made before must not leave for it
  for (int64_t index = 0; index < given.numel(); ++index) {
    first.data_ptr<float>()[index] = given.const_data_ptr<float>()[index];
    made.data_ptr<float>()[index] = static_cast<float>(first.const_data_ptr<float>()[index] * factor);
  }
  return made;
}

void increase(const std::vector<at::Tensor>& given) {
  for (const at::Tensor& tensor : given)
    for (int64_t index = 0; index < tensor.numel(); ++index) tensor.data_ptr<float>()[index] += 1;
}

// Keeps what it is given.
struct Table {
  at::Tensor rows;
  explicit Table(at::Tensor given) : rows(std::move(given)) {}
  float at(int64_t index) const { return rows.const_data_ptr<float>()[index]; }
  void put(const at::Tensor& given) const {
    for (int64_t index = 0; index < given.numel(); ++index)
      rows.data_ptr<float>()[index] = given.const_data_ptr<float>()[index];
  }
  static at::Tensor ones(int64_t count) {
    at::Tensor made = at::zeros({count}, at::kFloat);
    for (int64_t index = 0; index < count; ++index) made.data_ptr<float>()[index] += 1;
    return made;
  }
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("scaled", &scaled, pybind11::arg("given"), pybind11::arg("factor") = 2.0);
  module.def_submodule("inside").def("increase", &increase);
  pybind11::class_<Table>(module, "Table")
      .def(pybind11::init<at::Tensor>())
      .def("at", &Table::at)
      .def("put", &Table::put)
      .def_static("ones", &Table::ones);
}
