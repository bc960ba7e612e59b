package pagetest

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	_ "image/png" // the form of screenshots
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

var (
	withBrowser = flag.Bool("browser", false, "test the page in Chromium, too, which has to be there (make page)")
	screenshots = flag.String("screenshots", "", "keep the screenshots in this folder")
)

// chromium is a real browser.
type chromium struct {
	t    *testing.T
	path string
}

// findChromium returns the browser of this machine.
func findChromium(t *testing.T) *chromium {
	t.Helper()
	if !*withBrowser {
		t.Skip("it takes half a minute: make page runs it")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return &chromium{t, path}
		}
	}
	t.Fatal("there is no Chromium (Debian's package is chromium)")
	return nil
}

// run opens a page in a window, and returns what the browser prints.
func (c *chromium) run(url string, width, height int, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	profile, err := os.MkdirTemp("", "browser")
	if err != nil {
		c.t.Fatal(err)
	}
	defer os.RemoveAll(profile)
	all := append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--hide-scrollbars", "--user-data-dir=" + profile, fmt.Sprintf("--window-size=%d,%d", width, height),
	}, args...)
	cmd := exec.CommandContext(ctx, c.path, append(all, url)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		c.t.Fatalf("%s %s: %v\n%s", c.path, url, err, &log)
	}
	// What a page violates of its policy, and errors of its script, are lines of the browser's console.
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "CONSOLE") {
			c.t.Errorf("%s: %s", url, line)
		}
	}
	return out.String()
}

// screenshot returns a picture of a page.
func (c *chromium) screenshot(url, name string, width, height int) image.Image {
	c.t.Helper()
	folder := *screenshots
	if folder == "" {
		folder = c.t.TempDir()
	}
	file, err := filepath.Abs(filepath.Join(folder, name+".png"))
	if err != nil {
		c.t.Fatal(err)
	}
	c.run(url, width, height, "--screenshot="+file)
	b, err := os.ReadFile(file)
	if err != nil {
		c.t.Fatal(err)
	}
	picture, _, err := image.Decode(bytes.NewReader(b))
	if err != nil {
		c.t.Fatal(err)
	}
	if len(b) > 150<<10 {
		c.t.Errorf("%s has %d bytes", name, len(b))
	}
	return picture
}

// Things that are wrong are seen in a real browser, on a desk and on a phone, in light and dark.
func TestInABrowserThePageShowsWhatIsWrong(t *testing.T) {
	c := findChromium(t)
	w, b := startBroken(t)
	at := "http://" + w.Operator
	root, _ := b.page("/ui")
	pages := []struct{ name, path, shows string }{
		{"page-overview", "/ui", "which does not exist"},
		{"page-authority", link(root, wrong[0]), "connection refused"},
		{"page-client-rejects", link(root, wrong[1]), brokenworld.Words},
		{"page-rollout", link(root, wrong[2]), "frozen"},
		{"page-route", link(root, wrong[3]), "does not exist"},
		{"page-client", "/ui/client?client=" + brokenworld.Healthy, "missing"},
	}
	for _, p := range pages {
		if next, _ := b.page(p.path); !strings.Contains(textOf(next), p.shows) {
			t.Errorf("%s lacks %q", p.path, p.shows)
		}
		if picture := c.screenshot(at+p.path, p.name, 1100, 760); colours(picture) < 8 {
			t.Errorf("%s looks empty", p.path)
		}
	}
	// The script runs, and listens.
	if dom := c.run(at+"/ui", 1280, 900, "--dump-dom"); !strings.Contains(dom, ">connecting<") && !strings.Contains(dom, ">up to date<") {
		t.Errorf("the page is not kept up to date:\n%s", dom)
	}
	phone := c.screenshot(at+"/ui", "page-phone", 412, 900)
	if phone.Bounds().Dx() != 412 {
		t.Errorf("on a phone the page is %d wide", phone.Bounds().Dx())
	}
	dark := c.darkGround(at + "/ui")
	if light := ground(phone); brightness(light) < 200 || brightness(dark) > 60 {
		t.Errorf("the ground is %v in light, and %v in dark", light, dark)
	}
}

// darkGround returns the ground of a page in dark.
func (c *chromium) darkGround(url string) color.Color {
	file := filepath.Join(c.t.TempDir(), "dark.png")
	c.run(url, 412, 900, "--blink-settings=preferredColorScheme=0", "--screenshot="+file)
	f, err := os.Open(file)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	picture, _, err := image.Decode(f)
	if err != nil {
		c.t.Fatal(err)
	}
	return ground(picture)
}

// ground returns the colour at the lower left edge of a picture.
func ground(p image.Image) color.Color { return p.At(p.Bounds().Min.X+1, p.Bounds().Max.Y-2) }

func brightness(c color.Color) uint32 {
	r, g, b, _ := c.RGBA()
	return (r + g + b) / 3 >> 8
}

// colours counts the colours of a picture, up to 100.
func colours(p image.Image) int {
	seen := map[color.Color]bool{}
	for y := p.Bounds().Min.Y; y < p.Bounds().Max.Y; y += 3 {
		for x := p.Bounds().Min.X; x < p.Bounds().Max.X && len(seen) < 100; x += 3 {
			seen[p.At(x, y)] = true
		}
	}
	return len(seen)
}
