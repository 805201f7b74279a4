// SPDX-License-Identifier: BSD-3-Clause
// Divides the contents into files, and restores them from the files.
#include "lockstep/checkpoint/checkpoint_snapshot.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>
#include <set>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "lockstep/built_with.h"
#include "lockstep/checkpoint/optimizer/optimizer_fields.h"
#include "lockstep/checkpoint/optimizer/optimizer_state.h"
#include "lockstep/checkpoint/optimizer/stored_optimizer.h"
#include "lockstep/checkpoint/safetensors/safetensors_layout.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/distinct_parameters.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kRandomFile = "random.safetensors";
constexpr const char* kTensorsFile = "tensors.safetensors";

// The default generators of the devices that this rank trains on, by the devices' names.
std::map<std::string, at::Generator> generators(const torch::nn::Module& module,
                                                const ProcessGroup& group) {
  std::map<std::string, at::Generator> all{
      {"cpu", at::globalContext().defaultGenerator(at::Device(at::kCPU))}};
  const auto add = [&](at::Device device) {
    if (device.is_cuda()) {
      all.emplace(device.str(), at::globalContext().defaultGenerator(device));
    }
  };
  add(group.device());
  for (const at::Tensor& parameter : distinct_parameters(module)) add(parameter.device());
  return all;
}

std::string random_name(const std::string& device, int rank) {
  return fmt::format("{}.{}", device, rank);
}

// Buffers may differ between ranks: a BatchNorm has the statistics of its rank's own batches until
// DistributedDataParallel broadcasts the statistics of rank 0.
std::set<std::string> buffer_names(const torch::nn::Module& module) {
  std::set<const void*> parameters;
  for (const at::Tensor& parameter : distinct_parameters(module)) {
    parameters.insert(memory_of(parameter));
  }
  std::set<std::string> names;
  for (const auto& [name, tensor] : state_dict(module)) {
    if (!parameters.contains(memory_of(tensor))) names.insert(name);
  }
  return names;
}

// Describes the file with the state of every rank's generators, each a tensor that its rank
// provides.
FileToSave random_numbers_to_save(const torch::nn::Module& module, const ProcessGroup& group) {
  FileToSave file{.name = kRandomFile, .tensors = {}};
  for (auto& [device, generator] : generators(module, group)) {
    const std::lock_guard lock(generator.mutex());
    const at::Tensor state = generator.get_state();
    for (int rank = 0; rank < group.size(); ++rank) {
      TensorToSave tensor{.name = random_name(device, rank),
                          .type = find_element_type(state.scalar_type()),
                          .shape = state.sizes().vec()};
      if (rank == group.rank()) tensor.parts = {{0, state}};
      file.tensors.push_back(std::move(tensor));
    }
  }
  return file;
}

// Skips a state of another size: another libtorch saved it, whose numbers this one cannot continue.
void restore_random_numbers(const std::vector<NamedTensor>& tensors,
                            const torch::nn::Module& module, const ProcessGroup& group) {
  for (auto& [device, generator] : generators(module, group)) {
    for (const auto& [name, state] : tensors) {
      if (name != random_name(device, group.rank())) continue;
      const std::lock_guard lock(generator.mutex());
      const at::Tensor current = generator.get_state();
      const bool fits =
          state.sizes() == current.sizes() && state.scalar_type() == current.scalar_type();
      if (fits) generator.set_state(state);
    }
  }
}

json position_json(const CheckpointPosition& position) {
  return {{"step", position.step},
          {"epoch", position.data.epoch},
          {"samples_consumed", position.data.samples_consumed},
          {"samples", position.data.samples},
          {"seed", position.data.seed},
          {"notes", position.notes}};
}

CheckpointPosition position_of(const json& manifest) {
  const json& json = manifest.at("position");
  CheckpointPosition position{
      .step = json.at("step").get<std::int64_t>(),
      .data = {.seed = json.at("seed").get<std::int64_t>(),
               .epoch = json.at("epoch").get<std::int64_t>(),
               .samples_consumed = json.at("samples_consumed").get<std::int64_t>(),
               .samples = json.at("samples").get<std::int64_t>()},
      .score = {},
      .notes = json.at("notes").get<std::map<std::string, std::string>>()};
  if (manifest.at("score").is_number()) position.score = manifest["score"].get<double>();
  return position;
}

json scaler_json(const GradScaler& scaler) {
  const GradScalerState state = scaler.state();
  return {{"scale", state.scale},
          {"growth_factor", state.growth_factor},
          {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval},
          {"_growth_tracker", state.growth_tracker}};
}

GradScalerState scaler_state(const json& json) {
  return {.scale = json.at("scale").get<double>(),
          .growth_factor = json.at("growth_factor").get<double>(),
          .backoff_factor = json.at("backoff_factor").get<double>(),
          .growth_interval = json.at("growth_interval").get<std::int64_t>(),
          .growth_tracker = json.at("_growth_tracker").get<std::int64_t>()};
}

// Returns the tensors of this file; none if the checkpoint has no such file.
std::vector<NamedTensor> file_of(const StoredCheckpoint& stored, const std::string& name) {
  const auto found = stored.tensors.find(name);
  return found == stored.tensors.end() ? std::vector<NamedTensor>() : found->second;
}

// Says what only the program or only the checkpoint has; empty if both have the same parts.
std::string missing_part(const StoredCheckpoint& stored, const CheckpointContents& contents) {
  const auto compare = [](bool saved, bool wanted, const char* what) -> std::string {
    if (saved == wanted) return "";
    return wanted ? fmt::format("it has no {}, but the program loads one", what)
                  : fmt::format("it has {}, but the program loads none", what);
  };
  std::string fault = compare(!stored.manifest.at("optimizer").is_null(),
                              contents.optimizer != nullptr, "state of an optimizer");
  if (fault.empty()) {
    fault = compare(!stored.manifest.at("scaler").is_null(), contents.scaler != nullptr,
                    "state of a scaler");
  }
  // Older manifests have no such field.
  if (const auto saved = stored.manifest.find("scheduler");
      fault.empty() && saved != stored.manifest.end()) {
    fault = compare(!saved->is_null(), contents.scheduler != nullptr, "state of a scheduler");
  }
  return fault;
}

void check_parameter_names(const json& saved, const std::vector<std::string>& own) {
  const auto names = saved.get<std::vector<std::string>>();
  for (std::size_t i = 0; i < std::min(names.size(), own.size()); ++i) {
    if (names[i] == own[i] || names[i].empty() || own[i].empty()) continue;
    throw CheckpointError(fmt::format(
        "parameter {} of the optimizer is {}, and was {} when the checkpoint was saved; give the "
        "optimizer the parameters in the same order",
        i, in_quotes(own[i]), in_quotes(names[i])));
  }
}

std::function<void()> prepare_optimizer(const StoredCheckpoint& stored,
                                        const CheckpointContents& contents) {
  if (contents.optimizer == nullptr) return [] {};
  const json& description = stored.manifest.at("optimizer");
  check_parameter_names(description.at("parameter_names"),
                        parameter_names(*contents.optimizer, state_dict(*contents.module)));
  return detail::prepare_optimizer_state(
      *contents.optimizer,
      saved_optimizer_state(file_of(stored, kOptimizerFile), description.at("param_groups")));
}

GradScaler restored_scaler(const json& manifest, const CheckpointContents& contents) {
  if (contents.scaler == nullptr) return GradScaler();
  GradScaler scaler = *contents.scaler;
  scaler.load_state(scaler_state(manifest.at("scaler")));
  return scaler;
}

std::map<std::string, double> restored_scheduler(const json& manifest,
                                                 const CheckpointContents& contents) {
  if (contents.scheduler == nullptr) return {};
  const auto saved = manifest.find("scheduler");
  return saved == manifest.end() ? *contents.scheduler
                                 : saved->get<std::map<std::string, double>>();
}

// CheckpointFolder adds the remedy for a whole checkpoint.
void load_module(const CheckpointContents& contents, const std::vector<NamedTensor>& tensors) {
  detail::copy_by_name(state_dict(*contents.module), tensors, /*strict=*/true,
                       fmt::format("this module ({})", contents.module->name()), /*remedy=*/"");
}

void load_tensors(const CheckpointContents& contents, const std::vector<NamedTensor>& tensors) {
  detail::copy_by_name(contents.tensors, tensors, /*strict=*/true, "the program's tensors",
                       /*remedy=*/"");
}

std::vector<NamedTensor> copies(std::vector<NamedTensor> tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().clone();
  return tensors;
}

// Loads the module and the contents' tensors, of which `tensors` are the saved ones. Returns what
// undoes it. Changes nothing if it throws.
std::function<void()> restored_weights(const StoredCheckpoint& stored,
                                       const CheckpointContents& contents,
                                       const std::vector<NamedTensor>& tensors) {
  const auto undo = [&contents, module_before = copies(state_dict(*contents.module)),
                     tensors_before = copies(contents.tensors)] {
    load_module(contents, module_before);
    load_tensors(contents, tensors_before);
  };
  try {
    load_module(contents, file_of(stored, kModelFile));
    load_tensors(contents, tensors);
  } catch (...) {
    undo();
    throw;
  }
  return undo;
}

void check_tensors(const std::vector<NamedTensor>& tensors) {
  std::vector<TensorToSave> items;
  for (const auto& [name, tensor] : tensors) {
    items.push_back({name, &element_type_of(tensor, name), tensor.sizes().vec()});
  }
  static_cast<void>(lay_out_safetensors(items, {}));
}

// JSON has only finite numbers: the library would write null, which no optimizer can load.
void require_finite(const json& description, const char* whose) {
  const json flat = description.flatten();
  for (const auto& entry : flat.items()) {
    if (!entry.value().is_number_float() || std::isfinite(entry.value().get<double>())) continue;
    throw UsageError(
        fmt::format("a checkpoint cannot keep {} of the {}, which is {}; give it a "
                    "finite number",
                    entry.key(), whose, entry.value().get<double>()));
  }
}

}  // namespace

void check_savable(const CheckpointContents& contents) {
  check_tensors(state_dict(*contents.module));
  check_tensors(contents.tensors);
  if (contents.optimizer == nullptr) return;
  with_fields_of(*contents.optimizer, [](auto) {});
  // Most of the state has the type of its parameter.
  std::vector<NamedTensor> parameters;
  for (const at::Tensor& parameter : optim::parameters_of(*contents.optimizer)) {
    parameters.push_back({fmt::format("state.{}", parameters.size()), parameter});
  }
  check_tensors(parameters);
}

CheckpointSnapshot snapshot(const CheckpointContents& contents, const CheckpointPosition& position,
                            ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  CheckpointSnapshot snapshot;
  const std::vector<NamedTensor> module_state = state_dict(*contents.module);
  snapshot.files.push_back(share_out(kModelFile, module_state, group.rank(), group.size(),
                                     buffer_names(*contents.module)));
  json optimizer;
  if (contents.optimizer != nullptr) {
    OptimizerToSave saved =
        optimizer_to_save(kOptimizerFile, *contents.optimizer, module_state, group);
    snapshot.files.push_back(std::move(saved.file));
    optimizer = std::move(saved.description);
    require_finite(optimizer.at("param_groups"), "optimizer");
  }
  if (!contents.tensors.empty()) {
    snapshot.files.push_back(share_out(kTensorsFile, contents.tensors, group.rank(), group.size()));
  }
  snapshot.files.push_back(random_numbers_to_save(*contents.module, group));
  snapshot.manifest = {
      {"format", "lockstep checkpoint"},
      {"version", 1},
      {"lockstep", built_with::version},
      {"libtorch", TORCH_VERSION},
      {"ranks", group.size()},
      {"position", position_json(position)},
      {"score", position.score ? json(*position.score) : json()},
      {"optimizer", std::move(optimizer)},
      {"scaler", contents.scaler != nullptr ? scaler_json(*contents.scaler) : json()},
      {"scheduler", contents.scheduler != nullptr ? json(*contents.scheduler) : json()},
      {"files", json::object()}};
  return snapshot;
}

StoredCheckpoint in_memory(const CheckpointContents& contents, const CheckpointPosition& position,
                           ProcessGroup& self) {
  CheckpointSnapshot taken = snapshot(contents, position, self);
  StoredCheckpoint stored{.manifest = std::move(taken.manifest), .tensors = {}};
  for (const auto& [file, tensors] : taken.files) {
    for (const auto& [name, type, shape, parts] : tensors) {
      // The only rank provides a tensor in one part, unless it is empty.
      const at::Tensor elements = parts.empty() ? at::empty({0}, *type->type) : parts[0].elements;
      stored.tensors[file].push_back({name, elements.to(at::kCPU).view(shape)});
    }
  }
  return stored;
}

bool is_of_one_rank(const std::string& file) {
  return file == kRandomFile;
}

CheckpointPosition position_in(const StoredCheckpoint& stored) {
  try {
    return position_of(stored.manifest);
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("its manifest is incomplete: {}", first_line(error)));
  }
}

PreparedRestore prepare_restore(const StoredCheckpoint& stored, const CheckpointContents& contents,
                                const ProcessGroup& group) {
  try {
    if (const std::string fault = missing_part(stored, contents); !fault.empty()) {
      throw CheckpointError(fault);
    }
    const auto undo = restored_weights(stored, contents, file_of(stored, kTensorsFile));
    try {
      const auto complete = [&contents, &group, optimizer = prepare_optimizer(stored, contents),
                             scaler = restored_scaler(stored.manifest, contents),
                             scheduler = restored_scheduler(stored.manifest, contents),
                             random = file_of(stored, kRandomFile)] {
        optimizer();
        if (contents.scaler != nullptr) *contents.scaler = scaler;
        if (contents.scheduler != nullptr) *contents.scheduler = scheduler;
        restore_random_numbers(random, *contents.module, group);
      };
      return {complete, undo};
    } catch (...) {
      undo();
      throw;
    }
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("its manifest is incomplete: {}", first_line(error)));
  } catch (const UsageError& error) {
    throw CheckpointError(error.details());
  }
}

void keep_weights(StoredCheckpoint& stored) {
  std::erase_if(stored.tensors, [](const auto& file) {
    return file.first != kModelFile && file.first != kTensorsFile;
  });
}

PreparedRestore restore_weights(const StoredCheckpoint& stored,
                                const CheckpointContents& contents) {
  std::vector<NamedTensor> tensors = file_of(stored, kTensorsFile);
  std::erase_if(tensors, [&](const NamedTensor& saved) {
    return std::ranges::find(contents.tensors, saved.name, &NamedTensor::name) ==
           contents.tensors.end();
  });
  try {
    return {[] {}, restored_weights(stored, contents, tensors)};
  } catch (const UsageError& error) {
    throw CheckpointError(error.details());
  }
}

}  // namespace lockstep
