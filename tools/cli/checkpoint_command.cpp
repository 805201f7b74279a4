// SPDX-License-Identifier: BSD-3-Clause
// Prints what is in files of tensors and in checkpoints, as text or JSON.
#include "tools/cli/checkpoint_command.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/core/error.h"
#include "tools/checkpoint/checkpoint_inspection.h"
#include "tools/checkpoint/difference.h"
#include "tools/checkpoint/inspection.h"
#include "tools/checkpoint/tensor_source.h"
#include "tools/cli/help.h"
#include "tools/cli/print.h"
#include "tools/recipes/save_model.h"

namespace lockstep::cli {
namespace {

// Whether a new file gets that format: by the extension of its name; without one, if the source has
// the other format.
bool writes_safetensors(const std::filesystem::path& file, const TensorSource& source) {
  const NamedFormat named = format_named_by(file);
  return named == NamedFormat::safetensors ||
         (named == NamedFormat::unnamed && !source.is_safetensors());
}

}  // namespace

::CLI::App* CheckpointCommand::add_verb(::CLI::App& app, const std::string& name,
                                        const std::string& what, const std::string& folders) {
  ::CLI::App* verb = app.add_subcommand(name, what);
  verb->add_option(
          "FILE", file,
          "A safetensors or torch.save file, the index of sharded safetensors files" + folders)
      ->required();
  return verb;
}

void CheckpointCommand::describe(::CLI::App& app) {
  app.require_subcommand(1);
  inspect_ = add_verb(app, "inspect", "Print names, types, shapes and hashes of a file's tensors",
                      ", a checkpoint, or a folder of checkpoints (the newest is used)");
  verify_ = add_verb(app, "verify", "Read all of a file, and report what is wrong with it",
                     ", a checkpoint, or a folder of checkpoints (all are read)");
  diff_ = add_verb(app, "diff",
                   "Compare the tensors of two files, of either format, or of two "
                   "checkpoints",
                   ", a checkpoint, or a folder of checkpoints (the newest is used)");
  diff_->add_option("SECOND", second, "The other file or checkpoint")->required();
  export_ = add_verb(
      app, "export",
      "Write a file's tensors in the format of the new name: .safetensors, or .pt, .pth or .bin "
      "for torch.load; without an extension, in the other format",
      ", a checkpoint, or a folder of checkpoints (the newest is used), whose model is exported");
  export_->add_option("OUTPUT", second, "The new file, whose extension names its format")
      ->required();
  for (::CLI::App* verb : {inspect_, diff_, export_}) {
    verb->add_option(
            "--part", part,
            "Part of a torch.save file, such as model in {\"model\": ..., \"epoch\": 3} (default: "
            "the whole file)")
        ->type_name("NAME");
  }
  for (::CLI::App* verb : {inspect_, diff_}) {
    verb->add_flag("--json", json, "One JSON object, and nothing else, on standard output");
  }
  add_examples(app, {{"lockstep checkpoint verify checkpoints",
                      "Check all checkpoints of a folder for damage"},
                     {"lockstep checkpoint export checkpoints net.safetensors",
                      "Take the model out of the newest checkpoint"}});
  add_examples(*inspect_, {{"lockstep checkpoint inspect net.safetensors",
                            "List the tensors of a file, with their hashes"},
                           {"lockstep checkpoint inspect epoch.pt --part model",
                            "List only the state dict under the key \"model\""}});
  add_examples(*verify_,
               {{"lockstep checkpoint verify net.pt", "Read all of a file, with its checksums"},
                {"lockstep checkpoint verify checkpoints", "Read all checkpoints of a folder"}});
  add_examples(*diff_, {{"lockstep checkpoint diff before.pt after.safetensors",
                         "Find the tensors in which two files differ"},
                        {"lockstep checkpoint diff checkpoints/latest net.pt --json",
                         "Compare a checkpoint's model with a file, for a program"}});
  add_examples(*export_, {{"lockstep checkpoint export net.safetensors net.pt",
                           "Convert a file for torch.load(weights_only=True)"},
                          {"lockstep checkpoint export checkpoints net.safetensors",
                           "Take the model out of the newest checkpoint"}});
}

int CheckpointCommand::run() const {
  if (verify_->parsed()) return verify();
  if (diff_->parsed()) return diff();
  if (export_->parsed()) return convert();
  return std::filesystem::is_directory(file) ? inspect_checkpoint() : inspect_file();
}

int CheckpointCommand::inspect_file() const {
  const TensorSource source(file, part);
  check_output(print(stdout, json ? inspection_json(source) + "\n" : inspection_text(source)));
  return 0;
}

int CheckpointCommand::inspect_checkpoint() const {
  if (!part.empty()) {
    throw UsageError(fmt::format("{}: a checkpoint has no parts; leave out --part {}", file, part));
  }
  const auto checkpoint = find_checkpoint(file);
  check_output(
      print(stdout, json ? checkpoint_json(checkpoint) + "\n" : checkpoint_text(checkpoint)));
  return 0;
}

int CheckpointCommand::verify() const {
  return std::filesystem::is_directory(file) ? verify_folder() : verify_file();
}

int CheckpointCommand::verify_folder() const {
  int code = 0;
  for (const auto& verdict : verify_checkpoints(file)) {
    if (verdict.is_damaged) code = 1;
    check_output(print(stdout, fmt::format("{}: {}\n", verdict.checkpoint.string(), verdict.text)));
  }
  return code;
}

int CheckpointCommand::verify_file() const {
  const TensorSource source(file, "");
  for (std::size_t i = 0; i < source.names().size(); ++i) source.read_or_bytes(i);
  check_output(print(
      stdout,
      fmt::format("{}: {}{}, {} tensors, nothing is wrong{}\n", file, source.format(),
                  source.files() == 1 ? "" : fmt::format(" in {} files", source.files()),
                  source.names().size(),
                  source.unreadable() == 0
                      ? ""
                      : fmt::format("; {} are of types that this libtorch lacks, and only their "
                                    "bytes were read",
                                    source.unreadable()))));
  return 0;
}

// Takes the part of a torch.save file only, so that a file of parts can be compared with a state
// dict in safetensors. Against a file, a checkpoint stands for its model.
int CheckpointCommand::diff() const {
  const auto open = [this](const std::filesystem::path& name) {
    return TensorSource(name, is_torch_file(name) ? part : "");
  };
  const bool are_checkpoints =
      std::filesystem::is_directory(file) && std::filesystem::is_directory(second);
  const auto found = are_checkpoints
                         ? checkpoint_differences(file, second)
                         : differences(open(model_file(file)), open(model_file(second)));
  check_output(print(stdout, json ? difference_json(found) + "\n" : difference_text(found)));
  return found.empty() ? 0 : 1;
}

int CheckpointCommand::convert() const {
  const TensorSource source(model_file(file), part);
  const auto tensors = read_all(source);
  const bool to_safetensors = writes_safetensors(second, source);
  auto metadata = source.metadata();
  // Values that the other format lacks, or that this command does not write.
  std::size_t left_out = source.other_values();
  if (to_safetensors) {
    metadata.emplace("format", "pt");
    write_safetensors(second, tensors, metadata);
  } else {
    left_out += metadata.size();
    write_torch_file(second, tensors);
  }
  check_output(print(
      stdout,
      fmt::format("{}: {} tensor{}{}\n", second, tensors.size(), tensors.size() == 1 ? "" : "s",
                  left_out == 0 ? ""
                                : fmt::format("; {} other value{} of {} {} left out", left_out,
                                              left_out == 1 ? "" : "s", source.file(),
                                              left_out == 1 ? "was" : "were"))));
  return 0;
}

}  // namespace lockstep::cli
