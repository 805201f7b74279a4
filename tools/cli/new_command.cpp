// SPDX-License-Identifier: BSD-3-Clause
// Fills in the files of a new project, and writes them.
#include "tools/cli/new_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/file/whole_file.h"
#include "tools/cli/help.h"
#include "tools/cli/print.h"
#include "tools/cli/programs.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

// Letters, digits, "_" and "-", after a letter: a name for CMake, JSON and a container.
bool is_project_name(const std::string& name) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !name.empty() && is_letter(name.front()) && std::ranges::all_of(name, [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

void replace_all(std::string& text, std::string_view mark, const std::string& by) {
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at)) {
    text.replace(at, mark.size(), by);
    at += by.size();
  }
}

// Returns the folder above bin/, in which Lockstep is installed. UsageError in tools/cli/ of a
// build folder: only an installation has a package that lists its targets.
fs::path installed_prefix() {
  const fs::path folder = fs::path(this_program()).parent_path();
  const fs::path above = folder.parent_path();
  if (folder.filename() != "cli" || above.filename() != "tools") return above;
  throw UsageError(
      fmt::format("this command is in the build folder {0}, where a project cannot find Lockstep; "
                  "install it with cmake --install {0} --prefix DIR, then use DIR/bin/lockstep new",
                  above.parent_path().string()));
}

}  // namespace

void NewCommand::describe(::CLI::App& app) {
  app.add_option("PROJECT", folder,
                 "Folder for the project, which gets the folder's name; it must be empty or absent")
      ->required();
  add_examples(app, {{"lockstep new digits", "Write the project digits into a folder of that name"},
                     {"cd digits && cmake --preset release && cmake --build --preset release",
                      "Build its program, which `lockstep run -n 2 build/release/train` trains"}});
}

int NewCommand::run() const {
  const fs::path project = fs::absolute(folder).lexically_normal();
  const std::string name = (project.has_filename() ? project : project.parent_path()).filename();
  if (!is_project_name(name)) {
    throw UsageError(
        fmt::format("\"{}\" cannot be the name of a project; give a folder whose name "
                    "has letters, digits, - and _ only, and begins with a letter",
                    name));
  }
  std::error_code error;
  if (fs::exists(project, error) && !fs::is_directory(project, error)) {
    throw UsageError(fmt::format("{} is a file; name a new folder", folder));
  }
  if (fs::exists(project, error) && !fs::is_empty(project, error)) {
    throw UsageError(fmt::format("{} is not empty; name a new folder, or empty this one", folder));
  }
  const std::string prefix = installed_prefix();
  for (const ProjectFile& file : project_files()) {
    std::string text(file.text);
    replace_all(text, "@NAME@", name);
    replace_all(text, "@VERSION@", LOCKSTEP_VERSION);
    replace_all(text, "@PREFIX@", prefix);
    const fs::path path = project / file.path;
    fs::create_directories(path.parent_path(), error);
    if (error) {
      throw UsageError(fmt::format("cannot make the folder {}: {}", path.parent_path().string(),
                                   error.message()));
    }
    WholeFile whole(path);
    whole.write(text.data(), text.size());
    whole.commit();
  }
  check_output(print(stdout, fmt::format("Wrote the project {0} into {1}. To build and train it:\n"
                                         "  cd {1}\n"
                                         "  cmake --preset release\n"
                                         "  cmake --build --preset release\n"
                                         "  lockstep run -n 2 build/release/train\n",
                                         name, folder)));
  return 0;
}

}  // namespace lockstep::cli
