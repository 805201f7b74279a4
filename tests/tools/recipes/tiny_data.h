// SPDX-License-Identifier: BSD-3-Clause
// The data of a recipe, as few as a test wants.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "support/temporary_folder.h"
#include "tests/tools/recipes/tiny_images.h"
#include "tests/tools/recipes/tiny_text.h"

#include "tools/recipes/recipe.h"

namespace lockstep::testing {

// Writes tiny data that the recipe can read, if it reads any, and names it.
inline std::optional<std::filesystem::path> tiny_data(const Recipe& recipe,
                                                      const TemporaryFolder& folder,
                                                      std::uint32_t samples) {
  switch (recipe.data) {
    case RecipeData::generated:
      return std::nullopt;
    case RecipeData::images:
    case RecipeData::any_images:
      write_tiny_images(folder, samples);
      return folder.path();
    case RecipeData::text:
      write_tiny_text(folder, samples);
      return folder.path() / "text";
  }
  return std::nullopt;
}

}  // namespace lockstep::testing
