// SPDX-License-Identifier: BSD-3-Clause
// Averages the tensors of a module, and copies the averages into it or a replica of it.
#include "lockstep/optim/averaged_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/one_copy.h"

namespace lockstep {
namespace {

constexpr const char* kCount = "n_averaged";
constexpr const char* kModulePrefix = "module.";

struct ModuleTensor {
  NamedTensor named;
  bool is_parameter;
};

// With tied ones under each name, and without undefined buffers.
std::vector<ModuleTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<ModuleTensor> tensors;
  for (const auto& item : module.named_parameters()) {
    tensors.push_back({{item.key(), item.value()}, /*is_parameter=*/true});
  }
  for (const auto& item : module.named_buffers()) {
    tensors.push_back({{item.key(), item.value()}, /*is_parameter=*/false});
  }
  std::erase_if(tensors, [](const ModuleTensor& tensor) { return !tensor.named.tensor.defined(); });
  return tensors;
}

bool has_fractions(const at::Tensor& tensor) {
  return tensor.is_floating_point() || tensor.is_complex();
}

// Small changes would be lost in an average of 8 or 11 bits.
at::ScalarType type_of_average(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

std::string description(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  return fmt::format("{} [{}] on {}", c10::toString(type), fmt::join(sizes, ", "), device.str());
}

}  // namespace

WeightAverage::WeightAverage(const char* name, std::shared_ptr<torch::nn::Module> module,
                             ModuleFactory by_default, ExponentialMovingAverageOptions options,
                             std::optional<double> decay)
    : name_(name),
      module_(std::move(module)),
      by_default_(std::move(by_default)),
      options_(std::move(options)),
      decay_(decay),
      count_(at::zeros({}, at::kLong)) {
  if (decay_ && !(*decay_ >= 0 && *decay_ < 1)) {
    refuse(fmt::format("decay is {}", *decay_), "it must be from 0 to below 1, such as 0.999");
  }
  if (!module_) refuse("the module is empty", "make the net first");
  const at::NoGradGuard no_grad;
  std::unordered_map<const at::TensorImpl*, std::size_t> known;
  for (auto& [named, is_parameter] : tensors_of(*module_)) {
    const auto [found, is_new] =
        known.emplace(named.tensor.unsafeGetTensorImpl(), averages_.size());
    if (!is_new) {
      averages_[found->second].names.push_back(std::move(named.name));
      continue;
    }
    if (is_parameter && !has_fractions(named.tensor)) {
      refuse(fmt::format("the parameter {} is of type {}", named.name,
                         c10::toString(named.tensor.scalar_type())),
             "register tensors of integers as buffers");
    }
    const bool is_averaged = is_parameter || (options_.use_buffers && has_fractions(named.tensor));
    const at::Tensor values = named.tensor.detach();
    averages_.push_back({.names = {std::move(named.name)},
                         .sizes = values.sizes().vec(),
                         .type = values.scalar_type(),
                         .device = values.device(),
                         .values = is_averaged
                                       ? values.to(type_of_average(values), false, /*copy=*/true)
                                       : values.clone(),
                         .is_averaged = is_averaged});
  }
  if (averages_.empty()) refuse("the module has no parameters", "average the net that is trained");
}

void WeightAverage::update() {
  if (swapped_) {
    refuse("update() was called while the model has the averaged weights",
           "end the scope of swap_in() before training goes on");
  }
  const std::vector<at::Tensor> tensors = current();
  const double weight = weight_of_next();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& values = averages_[i].values;
    if (averages_[i].is_averaged && weight < 1) {
      values.lerp_(tensors[i].detach().to(values.scalar_type()), weight);
    } else {
      values.copy_(tensors[i]);
    }
  }
  count_.add_(1);
}

std::int64_t WeightAverage::updates() const {
  return count_.item<std::int64_t>();
}

WeightAverage::Swapped WeightAverage::swap_in() {
  require_updates("swap_in()");
  if (swapped_) {
    refuse("swap_in() was called while the model has the averaged weights already",
           "end the scope of the first one");
  }
  for (const at::Tensor& tensor : current()) {
    if (!has_one_copy(tensor)) continue;
    refuse(
        "the ranks have one copy of the weights (one_copy_per_host), and each of them would "
        "swap it",
        "evaluate module(), which has memory of its own");
  }
  return Swapped(*this);
}

WeightAverage::Swapped::Swapped(WeightAverage& average) : average_(average) {
  const std::vector<at::Tensor> tensors = average_.current();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) saved_.push_back({tensor, tensor.detach().clone()});
  average_.swapped_ = true;
  try {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].copy_(average_.averages_[i].values);
    }
  } catch (...) {
    restore();
    throw;
  }
}

WeightAverage::Swapped::~Swapped() {
  restore();
}

void WeightAverage::Swapped::restore() noexcept {
  const at::NoGradGuard no_grad;
  for (const Saved& saved : saved_) saved.original.copy_(saved.values);
  average_.swapped_ = false;
}

std::vector<NamedTensor> WeightAverage::state_dict() const {
  std::vector<NamedTensor> state{{kCount, count_}};
  for (const Average& average : averages_) {
    for (const std::string& name : average.names) {
      state.push_back({kModulePrefix + name, average.values});
    }
  }
  return state;
}

void WeightAverage::load_state_dict(std::span<const NamedTensor> state) {
  std::map<std::string_view, at::Tensor> given;
  std::vector<std::string> faults;
  for (const auto& [name, tensor] : state) {
    if (!tensor.defined() || tensor.layout() != at::kStrided) {
      faults.push_back(fmt::format("{} is undefined or sparse", name));
    }
    if (!given.emplace(name, tensor).second)
      faults.push_back(fmt::format("{} is there twice", name));
  }
  std::set<std::string_view> known;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  const std::vector<NamedTensor> own = state_dict();
  for (const auto& [name, values] : own) {
    known.insert(name);
    const auto found = given.find(name);
    if (found == given.end()) {
      faults.push_back(fmt::format("{} is missing", name));
    } else if (const at::Tensor& tensor = found->second; tensor.defined()) {
      if (tensor.sizes() != values.sizes()) {
        faults.push_back(fmt::format("{} has the shape [{}], and here it is [{}]", name,
                                     fmt::join(tensor.sizes(), ", "),
                                     fmt::join(values.sizes(), ", ")));
      }
      copies.emplace_back(values, tensor);
    }
  }
  for (const auto& [name, tensor] : given) {
    if (!known.contains(name)) faults.push_back(fmt::format("{} is unexpected", name));
  }
  if (!faults.empty()) {
    throw CheckpointError(ErrorContext{.component = name_},
                          fmt::format("the state does not fit the averages of this module ({}):\n  "
                                      "{}",
                                      module_->name(), fmt::join(faults, "\n  ")));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [values, tensor] : copies) values.copy_(tensor);
}

std::shared_ptr<torch::nn::Module> WeightAverage::averaged_module() {
  require_updates("module()");
  if (!replica_) {
    replica_ = make_replica(*module_, {.make_replica = options_.make_replica,
                                       .by_default = by_default_,
                                       .trust_constructors = options_.trust_constructors,
                                       .owner = name_});
  }
  std::map<std::string, at::Tensor> tensors;
  for (auto& [named, is_parameter] : tensors_of(*replica_))
    tensors.emplace(named.name, named.tensor);
  const at::NoGradGuard no_grad;
  for (const Average& average : averages_) {
    // Shares the memory of the average unless that is of another type.
    const at::Tensor values = average.values.to(average.type);
    for (const std::string& name : average.names) {
      const at::Tensor& tensor = tensors.at(name);
      tensor.set_data(values);
      tensor.set_requires_grad(false);
    }
  }
  replica_->eval();
  return replica_;
}

// Returns the tensors that belong to the averages, as the module has them now.
std::vector<at::Tensor> WeightAverage::current() const {
  std::map<std::string, at::Tensor> found;
  for (auto& [named, is_parameter] : tensors_of(*module_)) {
    found.emplace(std::move(named.name), std::move(named.tensor));
  }
  std::vector<at::Tensor> tensors;
  constexpr const char* kRemedy = "make a new average after changing the model";
  std::size_t names = 0;
  for (const Average& average : averages_) {
    names += average.names.size();
    for (const std::string& name : average.names) {
      const auto entry = found.find(name);
      if (entry == found.end()) refuse(fmt::format("{} is gone", name), kRemedy);
      const at::Tensor& tensor = entry->second;
      if (tensor.sizes() == average.sizes && tensor.scalar_type() == average.type &&
          tensor.device() == average.device) {
        continue;
      }
      refuse(fmt::format("{} is {}, and was {} when the average was made", name,
                         description(tensor.sizes(), tensor.scalar_type(), tensor.device()),
                         description(average.sizes, average.type, average.device)),
             kRemedy);
    }
    tensors.push_back(found.at(average.names.front()));
  }
  if (names == found.size()) return tensors;
  for (const Average& average : averages_) {
    for (const std::string& name : average.names) found.erase(name);
  }
  refuse(fmt::format("{} was registered after the average was made", found.begin()->first),
         kRemedy);
}

// The weight of the model in the next update.
double WeightAverage::weight_of_next() const {
  const auto updates = static_cast<double>(this->updates());
  if (updates == 0) return 1;
  if (!decay_) return 1 / (updates + 1);
  const double most = options_.warmup ? (1 + updates) / (10 + updates) : 1;
  return 1 - std::min(*decay_, most);
}

void WeightAverage::require_updates(const char* call) const {
  if (updates() > 0) return;
  refuse(fmt::format("{} was called before the first update()", call),
         "call update() after optimizer.step()");
}

void WeightAverage::refuse(const std::string& cause, const std::string& remedy) const {
  throw UsageError(ErrorContext{.component = name_}, cause, remedy);
}

}  // namespace lockstep
