// SPDX-License-Identifier: BSD-3-Clause
// The complete checkpoints of a folder: decides which are kept, removes the others, and points the
// links `latest` and `best`.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Keeps the `keep_last` newest checkpoints and those with the `keep_best` highest scores. Used by
// one thread at a time. Functions that change the folder throw BackendError if that fails.
class KeptCheckpoints {
 public:
  KeptCheckpoints(std::filesystem::path folder, int keep_last, int keep_best);

  // Adds the newest checkpoint. One of the same name, which it has replaced, is forgotten. A score
  // that is NaN counts as none.
  void add(const std::string& name, std::optional<double> score);

  // Makes the checkpoint `name` the newest: the later ones are removed first, and their scores no
  // longer count.
  void continue_from(const std::string& name);

  // Returns the names of the checkpoints with a score, the highest first; of equal scores, the
  // first.
  std::vector<std::string> names_by_score() const;

  // Removes the checkpoints that are not kept. After an error it removes the rest, and throws the
  // first error; the next call tries again.
  void remove_old();

  // Points the link `latest` to the newest checkpoint; there must be one.
  void point_to_newest();
  // Points the link `best` to the checkpoint with the highest score. Removes the link if there is
  // none, or if no checkpoint is kept for its score, since the best of the run may then be gone.
  void point_to_best();

 private:
  struct Kept {
    std::string name;
    std::optional<double> score;
  };

  std::filesystem::path in(std::string_view name) const { return folder_ / name; }
  void point_to(const std::string& name, const char* link);
  void remove(const std::string& name);

  std::filesystem::path folder_;
  std::size_t keep_last_;
  std::size_t keep_best_;
  std::vector<Kept> kept_;  // in the order of removal
};

}  // namespace lockstep
