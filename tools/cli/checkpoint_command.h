// SPDX-License-Identifier: BSD-3-Clause
// `lockstep checkpoint`: looks into files of tensors, compares and converts them.
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

  // Returns the exit code: 1 if a file is damaged, or if two files differ.
  int run() const;

 private:
  ::CLI::App* add_verb(::CLI::App& app, const std::string& name, const std::string& what);
  int verify() const;
  int diff() const;
  int convert() const;

  ::CLI::App* inspect_ = nullptr;
  ::CLI::App* verify_ = nullptr;
  ::CLI::App* diff_ = nullptr;
  ::CLI::App* export_ = nullptr;
};

}  // namespace lockstep::cli
