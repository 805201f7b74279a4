// SPDX-License-Identifier: BSD-3-Clause
// `lockstep checkpoint`: looks into files of tensors and checkpoints, compares and converts
// files.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct CheckpointCommand {
  std::string file;
  std::string second;
  std::string part;
  bool json = false;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);

  // Returns the exit code: 1 if a file or checkpoint is damaged, or if two files differ.
  int run() const;

 private:
  ::CLI::App* add_verb(::CLI::App& app, const std::string& name, const std::string& what,
                       const std::string& folders = "");
  int inspect_file() const;
  int inspect_checkpoint() const;
  int verify() const;
  int verify_file() const;
  int verify_folder() const;
  int diff() const;
  int convert() const;

  ::CLI::App* inspect_ = nullptr;
  ::CLI::App* verify_ = nullptr;
  ::CLI::App* diff_ = nullptr;
  ::CLI::App* export_ = nullptr;
};

}  // namespace lockstep::cli
