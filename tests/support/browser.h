// SPDX-License-Identifier: BSD-3-Clause
// A page as a real browser shows it: headless Chromium.
#pragma once

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "support/temporary_folder.h"

namespace lockstep::testing {

// What a command prints; nothing if it fails.
inline std::string output_of(const std::string& command) {
  std::string text;
  const auto close = [](FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(::popen(command.c_str(), "r"), close);
  std::array<char, 4096> buffer{};
  while (const std::size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    text.append(buffer.data(), size);
  }
  return text;
}

inline bool has_browser() {
  return !output_of("command -v chromium").empty();
}

// The page after its scripts have run, in a frame of this width, since a window has a least one. A
// script that is added reports errors, how wide the page is, and how many charts have been painted.
// LOCKSTEP_KEEP_PAGES names a folder for a picture of what the browser shows.
inline std::string page_in_browser(const std::string& page, int width, const std::string& options) {
  const TemporaryFolder folder;
  const std::string listen =
      "<script>addEventListener('error', (e) => document.documentElement.dataset.error = "
      "e.message)</script>";
  const std::string look = R"(<script>
    const root = document.documentElement;
    root.dataset.tooWide = root.scrollWidth > innerWidth;
    root.dataset.width = innerWidth;
    root.dataset.dark = matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.painted = [...document.querySelectorAll('canvas')].filter((canvas) =>
      canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((x) => x)
    ).length;
    parent.postMessage({...root.dataset}, '*');
    </script>)";
  std::string text = page;
  text.insert(text.find("<title>"), listen);
  text.insert(text.rfind("</body>"), look);
  folder.write("report.html", text);
  folder.write("frame.html",
               "<!doctype html><meta name=color-scheme content='light dark'>"
               "<style>body { margin: 0 } iframe { border: 0; display: block }</style><script>"
               "addEventListener('message', (e) => Object.assign(document.documentElement.dataset, "
               "e.data))</script><iframe src=report.html width=" +
                   std::to_string(width) + " height=2900></iframe>");
  const std::string chromium =
      "timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
      "--allow-file-access-from-files --host-resolver-rules='MAP * ~NOTFOUND' "
      "--virtual-time-budget=5000 --user-data-dir=" +
      (folder.path() / "profile").string() + " --window-size=" + std::to_string(width) + ",2900 " +
      options;
  const std::string address = " file://" + (folder.path() / "frame.html").string() + " 2>/dev/null";
  if (const char* keep = std::getenv("LOCKSTEP_KEEP_PAGES")) {
    output_of(chromium + " --screenshot=" + keep + "/" + std::to_string(width) +
              (options.empty() ? "" : "-dark") + ".png" + address);
  }
  return output_of(chromium + " --dump-dom" + address);
}

}  // namespace lockstep::testing
