// SPDX-License-Identifier: BSD-3-Clause
// Converts results and errors to JSON and back.
#include "tools/recipes/train_result.h"

#include <fmt/format.h>
#include <torch/version.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/launch/stack_trace.h"
#include "lockstep/parallel/model_checks.h"
#include "tools/build_facts.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {
namespace {

// The lost rank, if the error is its loss.
std::optional<int> lost_rank(const std::exception& error) {
  if (const auto* lost = dynamic_cast<const PeerLost*>(&error)) return lost->rank();
  const auto* failed = dynamic_cast<const RankFailed*>(&error);
  return failed && failed->failure().signal != 0 ? std::optional(failed->failure().rank)
                                                 : std::nullopt;
}

std::string_view kind_of(const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error) != nullptr) return "usage";
  if (lost_rank(error)) return "peer_lost";
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return "timeout";
  if (dynamic_cast<const BackendError*>(&error) != nullptr) return "backend";
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) return "checkpoint";
  if (dynamic_cast<const NonFiniteGradient*>(&error) != nullptr) return "not_finite";
  if (dynamic_cast<const OutOfSync*>(&error) != nullptr) return "out_of_sync";
  return "error";
}

// JSON has no NaN: null stands for the loss of a training run that diverged, or that had nothing
// left.
double number_from(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

std::optional<double> optional_number(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found == json.end() ? std::nullopt : std::optional(number_from(*found));
}

std::vector<LossPoint> losses_from(const Json& json) {
  std::vector<LossPoint> points;
  for (const Json& point : json) {
    points.push_back({point.at("epoch"), number_from(point.at("loss"))});
  }
  return points;
}

}  // namespace

Json versions_json() {
  return {{"lockstep", kVersion}, {"libtorch", kTorchVersion}};
}

Json fields_of(const TrainResult& result) {
  Json json{{"recipe", result.recipe},
            {"mode", result.mode},
            {"ranks", result.ranks},
            {"replicas", result.replicas},
            {"threads", result.threads},
            {"device", result.device},
            {"seed", result.seed},
            {"batch_size", result.batch_size},
            {"global_batch_size", result.global_batch_size},
            {"learning_rate", result.learning_rate},
            {"learning_rate_scale", result.learning_rate_scale},
            {"epochs", result.epochs},
            {"seconds", result.seconds},
            {"seconds_per_epoch", result.seconds_per_epoch},
            {"samples_per_second", result.samples_per_second},
            {"loss", result.loss},
            {"losses", Json::array()},
            {"bytes_moved_per_step", result.bytes_moved_per_step}};
  for (const LossPoint& point : result.losses) {
    json["losses"].push_back({{"epoch", point.epoch}, {"loss", point.loss}});
  }
  if (!result.amp.empty()) json["amp"] = result.amp;
  if (result.microbatches > 0) json["microbatches"] = result.microbatches;
  if (!result.sha256.empty()) json["sha256"] = result.sha256;
  if (result.peak_mb) json["peak_mb"] = *result.peak_mb;
  if (result.fullest_peak_mb) json["fullest_peak_mb"] = *result.fullest_peak_mb;
  if (result.core_wait) json["core_wait"] = *result.core_wait;
  if (const auto note = overload(result.core_wait); !note.empty()) json["load"] = note;
  if (result.accuracy) json["accuracy"] = *result.accuracy;
  if (result.bits_per_character) json["bits_per_character"] = *result.bits_per_character;
  if (result.test_bits_per_character) {
    json["test_bits_per_character"] = *result.test_bits_per_character;
  }
  if (result.weight) json["weight"] = *result.weight;
  if (result.bias) json["bias"] = *result.bias;
  if (!result.not_written.empty()) json["not_written"] = result.not_written;
  return json;
}

std::string to_json(const TrainResult& result) {
  Json json{{"schema_version", kSchemaVersion}, {"versions", versions_json()}};
  json.update(fields_of(result));
  // Paths may contain bytes that are not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

TrainResult train_result_from_json(const std::string& text) try {
  const Json json = Json::parse(text);
  return {.recipe = json.at("recipe"),
          .mode = json.at("mode"),
          .ranks = json.at("ranks"),
          .replicas = json.at("replicas"),
          .threads = json.at("threads"),
          .device = json.at("device"),
          .seed = json.at("seed"),
          .batch_size = json.at("batch_size"),
          .global_batch_size = json.at("global_batch_size"),
          .microbatches = json.value("microbatches", std::int64_t{0}),
          .learning_rate = json.at("learning_rate"),
          .learning_rate_scale = json.at("learning_rate_scale"),
          .epochs = json.at("epochs"),
          .amp = json.value("amp", ""),
          .seconds = json.at("seconds"),
          .seconds_per_epoch = json.at("seconds_per_epoch"),
          .samples_per_second = json.at("samples_per_second"),
          .loss = number_from(json.at("loss")),
          .losses = losses_from(json.at("losses")),
          .peak_mb = optional_number(json, "peak_mb"),
          .fullest_peak_mb = optional_number(json, "fullest_peak_mb"),
          .core_wait = optional_number(json, "core_wait"),
          .bytes_moved_per_step = json.at("bytes_moved_per_step"),
          .accuracy = optional_number(json, "accuracy"),
          .bits_per_character = optional_number(json, "bits_per_character"),
          .test_bits_per_character = optional_number(json, "test_bits_per_character"),
          .weight = optional_number(json, "weight"),
          .bias = optional_number(json, "bias"),
          .sha256 = json.value("sha256", ""),
          .not_written = json.value("not_written", std::vector<std::string>())};
} catch (const Json::exception& error) {
  throw Error(fmt::format("not the result of a training run: {} in \"{}\"", error.what(), text));
}

std::string error_to_json(const std::exception& error) {
  Json details{{"kind", kind_of(error)}, {"message", without_stack_trace(error.what())}};
  if (const auto rank = lost_rank(error)) details["rank"] = *rank;
  // An exception's text, such as a file's name, may contain bytes that are not UTF-8.
  return Json{{"schema_version", kSchemaVersion}, {"error", details}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace lockstep
