// SPDX-License-Identifier: BSD-3-Clause
// `lockstep new`: writes a project that builds and trains at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

struct NewCommand {
  std::string folder;

  // Describes the verb to the parser. The object must outlive it.
  void describe(::CLI::App& app);
  // Returns the exit code. UsageError for a folder that is not empty or whose name cannot be a
  // project's, and if this program is not installed; nothing has been written then.
  int run() const;
};

struct ProjectFile {
  // Below the project's folder.
  std::string_view path;
  // @NAME@, @VERSION@ and @PREFIX@ stand for the project, Lockstep's version, and the folder in
  // which it is installed.
  std::string_view text;
};

// The files of tools/cli/project/, which the build embeds.
const std::vector<ProjectFile>& project_files();

}  // namespace lockstep::cli
