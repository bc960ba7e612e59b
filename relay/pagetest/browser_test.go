package pagetest

import (
	"image"
	"image/color"
	"strings"
	"testing"

	"github.com/xds-relay/xds-relay/relay/brokenworld"
)

// Problems are visible in a real browser, on a desktop and on a phone, in light and dark mode.
func TestInABrowserThePageShowsWhatIsWrong(t *testing.T) {
	needBrowser(t)
	w, b := startBroken(t)
	c := openChromium(t, w.Operator)
	root, _ := b.page("/ui")
	pages := []struct{ name, path, shows string }{
		{"page-overview", "/ui", "which does not exist"},
		{"page-authority", link(root, wrong[0]), "connection refused"},
		{"page-client-rejects", link(root, wrong[1]), brokenworld.Words},
		{"page-rollout", link(root, wrong[2]), "frozen"},
		{"page-route", link(root, wrong[3]), "does not exist"},
		{"page-client", "/ui/client?client=" + brokenworld.Healthy, "does not exist"},
	}
	for _, p := range pages {
		c.open(p.path)
		c.awaitText(p.shows)
		if picture := c.screenshot(p.name); colours(picture) < 8 {
			t.Errorf("%s looks empty", p.path)
		}
	}
	c.await("the page is kept up to date", `document.getElementById("live").textContent === "page is live"`)
	c.window(412, 900, true)
	for _, p := range pages {
		c.open(p.path)
		c.awaitText(p.shows)
		name := ""
		if p.path == "/ui" {
			name = "page-phone"
		}
		c.narrow(p.path)
		phone := c.screenshot(name)
		if name == "" {
			continue
		}
		c.dark(true)
		dark := c.screenshot("")
		c.dark(false)
		if light := ground(phone); brightness(light) < 200 || brightness(ground(dark)) > 60 {
			t.Errorf("the ground is %v in light, and %v in dark", light, ground(dark))
		}
	}
}

// narrow checks that a page is not wider than the window: wide elements scroll by themselves.
func (c *chromium) narrow(path string) {
	c.t.Helper()
	var wide []string
	if err := c.evaluate(`document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > innerWidth && !e.closest(".scroll, pre")).map((e) => e.outerHTML.slice(0, 200))`, &wide); err != nil {
		c.t.Fatal(err)
	}
	if len(wide) > 0 {
		c.t.Errorf("%s is wider than a phone, because of %s", path, strings.Join(wide, "\n"))
	}
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
