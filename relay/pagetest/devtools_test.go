package pagetest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"image"
	_ "image/png" // the form of screenshots
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// A real browser, Chromium, which the tests operate like a person: with a mouse and a keyboard. They control it over
// the DevTools protocol, with JSON over two pipes. That needs no port, and only the few methods of the protocol
// below.

var (
	withBrowser = flag.Bool("browser", false, "test the page in Chromium, too, which has to be there (make page)")
	screenshots = flag.String("screenshots", "", "keep the screenshots in this folder")
)

// chromium is a window of a browser.
type chromium struct {
	t       *testing.T
	at      string // the address of the pages, with http://
	session string
	out     io.Writer

	mu      sync.Mutex
	last    int
	answers map[int]chan answer
	loaded  chan struct{} // has one element if a page was loaded since it was emptied
}

// answer is an answer to a call, or an event.
type answer struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// needBrowser skips a test if there is no browser.
func needBrowser(t *testing.T) {
	t.Helper()
	if !*withBrowser {
		t.Skip("it needs Chromium: make page runs it")
	}
}

// openChromium starts the browser of this machine, with the pages of a listener, until the test ends.
func openChromium(t *testing.T, address string) *chromium {
	t.Helper()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	if path == "" {
		t.Fatal("there is no Chromium (Debian's package is chromium)")
	}
	toBrowser, in := pipe(t)
	out, fromBrowser := pipe(t)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path,
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--hide-scrollbars", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = toBrowser.Close(), fromBrowser.Close() // the browser has them
	c := &chromium{t: t, at: "http://" + address, out: in, answers: map[int]chan answer{}, loaded: make(chan struct{}, 1)}
	read := make(chan struct{})
	go func() { defer close(read); c.read(out) }()
	t.Cleanup(func() {
		c.call("Browser.close", nil, nil)
		_ = cmd.Wait() // it may have been ended
		cancel()
		<-read
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	c.call("Target.createTarget", values{"url": "about:blank"}, &target)
	var session struct {
		SessionID string `json:"sessionId"`
	}
	c.call("Target.attachToTarget", values{"targetId": target.TargetID, "flatten": true}, &session)
	c.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		c.call(domain+".enable", nil, nil)
	}
	c.window(1100, 760, false)
	return c
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}

type values map[string]any

// call calls a method, and waits for its answer.
func (c *chromium) call(method string, params values, result any) {
	c.t.Helper()
	if err := c.try(method, params, result); err != nil {
		c.t.Fatal(err)
	}
}

// try is like call, for calls that may fail.
func (c *chromium) try(method string, params values, result any) error {
	if params == nil {
		params = values{}
	}
	came := make(chan answer, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.answers[id] = came
	message := values{"id": id, "method": method, "params": params}
	if c.session != "" && method != "Browser.close" {
		message["sessionId"] = c.session
	}
	text, err := json.Marshal(message)
	if err == nil {
		_, err = c.out.Write(append(text, 0))
	}
	c.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case a := <-came:
		switch {
		case a.Error != nil:
			return fmt.Errorf("%s: %s", method, a.Error.Message)
		case result != nil:
			return json.Unmarshal(a.Result, result)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s: the browser does not answer", method)
	}
}

// patience is how long a step may take that normally takes a moment.
const patience = time.Minute

// read reads the browser's messages. Violations of a page's policy, and errors of its scripts, fail the test.
func (c *chromium) read(from io.Reader) {
	var rest []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		for rest = append(rest, buffer[:n]...); ; {
			text, after, complete := bytes.Cut(rest, []byte{0})
			if !complete {
				break
			}
			c.take(text)
			rest = after
		}
		if err != nil {
			return // the browser has ended
		}
	}
}

func (c *chromium) take(text []byte) {
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		c.t.Errorf("the browser sends %q", text)
		return
	}
	switch a.Method {
	case "":
		c.mu.Lock()
		came := c.answers[a.ID]
		delete(c.answers, a.ID)
		c.mu.Unlock()
		if came != nil {
			came <- a
		}
	case "Page.loadEventFired":
		select {
		case c.loaded <- struct{}{}:
		default:
		}
	case "Runtime.exceptionThrown":
		c.t.Errorf("a script fails: %s", a.Params)
	case "Log.entryAdded", "Runtime.consoleAPICalled":
		if !bytes.Contains(a.Params, []byte("net::ERR_")) { // a stream that ends with its page
			c.t.Errorf("the console has %s", a.Params)
		}
	}
}

// window sets the size of the window. A phone has a touch screen, and scales pages as phones do.
func (c *chromium) window(width, height int, phone bool) {
	c.t.Helper()
	c.call("Emulation.setDeviceMetricsOverride", values{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}, nil)
}

// dark sets whether the reader prefers dark pages.
func (c *chromium) dark(is bool) {
	c.t.Helper()
	value := map[bool]string{true: "dark", false: "light"}[is]
	c.call("Emulation.setEmulatedMedia", values{"features": []values{{"name": "prefers-color-scheme", "value": value}}}, nil)
}

// open opens a page, and waits until it is loaded.
func (c *chromium) open(path string) {
	c.t.Helper()
	select {
	case <-c.loaded:
	default:
	}
	c.call("Page.navigate", values{"url": c.at + path}, nil)
	select {
	case <-c.loaded:
	case <-time.After(patience):
		c.t.Fatalf("%s is not loaded", path)
	}
}

// evaluate evaluates an expression in the page, and waits for its value if it is a promise.
func (c *chromium) evaluate(expression string, into any) error {
	var result struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception *struct {
			Exception struct {
				Description string `json:"description"`
			} `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if err := c.try("Runtime.evaluate", values{"expression": expression, "awaitPromise": true, "returnByValue": true}, &result); err != nil {
		return err
	}
	if result.Exception != nil {
		return errors.New(result.Exception.Exception.Description)
	}
	if into == nil || result.Result.Value == nil {
		return nil
	}
	return json.Unmarshal(result.Result.Value, into)
}

// await waits until an expression about the page is true. It is evaluated again whenever the page changes, also after
// another one was loaded.
func (c *chromium) await(what, expression string) {
	c.t.Helper()
	promise := `new Promise((resolve) => {
		const is = () => { try { return !!(` + expression + `) } catch { return false } };
		const look = () => { if (is()) { observer.disconnect(); resolve(true) } };
		const observer = new MutationObserver(look);
		observer.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
		document.addEventListener("readystatechange", look);
		document.addEventListener("focusin", look);
		window.addEventListener("load", look);
		look();
	})`
	deadline := time.Now().Add(patience)
	for {
		err := c.evaluate(promise, nil)
		if err == nil {
			return
		}
		// The page has gone: another one is being loaded.
		if time.Now().After(deadline) {
			var text string
			_ = c.evaluate(`location.href + "\n" + document.body.innerText`, &text)
			c.t.Fatalf("it does not come about that %s: %v\n%s", what, err, text)
		}
	}
}

// awaitText waits until a page shows a text.
func (c *chromium) awaitText(text string) {
	c.t.Helper()
	c.await("the page shows "+text, `document.readyState === "complete" && document.body.innerText.includes(`+quote(text)+`)`)
}

func quote(text string) string {
	b, _ := json.Marshal(text) // a text is JSON
	return string(b)
}

// element is an expression for the visible link, button or summary with a text.
func element(text string) string {
	return `[...document.querySelectorAll("a, button, summary, input, select")].find((e) => e.getClientRects().length && (e.textContent.trim() === ` + quote(text) + ` || e.id === ` + quote(text) + `))`
}

// click clicks in the middle of a link, button or summary with a text, or of the input with an id.
func (c *chromium) click(text string) {
	c.t.Helper()
	c.await("there is "+text, element(text))
	var at struct{ X, Y float64 }
	if err := c.evaluate(`(() => { const e = `+element(text)+`; e.scrollIntoView({ block: "center", behavior: "instant" }); const r = e.getClientRects()[0]; return { X: r.x + r.width / 2, Y: r.y + r.height / 2 } })()`, &at); err != nil {
		c.t.Fatal(err)
	}
	for _, event := range []string{"mousePressed", "mouseReleased"} {
		c.call("Input.dispatchMouseEvent", values{"type": event, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1}, nil)
	}
}

// write writes a text with the keyboard.
func (c *chromium) write(text string) {
	c.t.Helper()
	c.call("Input.insertText", values{"text": text}, nil)
}

// press presses a key.
func (c *chromium) press(key string) {
	c.t.Helper()
	of := map[string]values{
		"Tab":   {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
		"Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
		"Space": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
	}[key]
	for _, event := range []string{"keyDown", "keyUp"} {
		of["type"] = event
		if event == "keyUp" {
			delete(of, "text")
		}
		c.call("Input.dispatchKeyEvent", of, nil)
	}
}

// tabTo presses the tab key until a link, button or summary with a text has the focus, or the input with an id. The
// focus has to be visible at every step.
func (c *chromium) tabTo(text string) {
	c.t.Helper()
	var way []string
	for range 120 {
		c.press("Tab")
		var at struct {
			Name    string
			Is      bool
			Visible bool
		}
		if err := c.evaluate(`(() => { const e = document.activeElement, s = getComputedStyle(e); return { Name: e.id || e.textContent.trim(), Is: e === `+element(text)+`, Visible: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 1 } })()`, &at); err != nil {
			c.t.Fatal(err)
		}
		way = append(way, at.Name)
		if !at.Visible {
			c.t.Errorf("one does not see that %q has the focus", at.Name)
		}
		if at.Is {
			return
		}
	}
	c.t.Fatalf("the tabulator does not lead to %q, but to %q", text, way)
}

// screenshot returns a picture of the window. It also writes the picture to a file if it has a name.
func (c *chromium) screenshot(name string) image.Image {
	c.t.Helper()
	var shot struct {
		Data string `json:"data"`
	}
	c.call("Page.captureScreenshot", values{"format": "png"}, &shot)
	b, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		c.t.Fatal(err)
	}
	if *screenshots != "" && name != "" {
		if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), b, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	if len(b) > 150<<10 {
		c.t.Errorf("%s has %d bytes", name, len(b))
	}
	picture, _, err := image.Decode(bytes.NewReader(b))
	if err != nil {
		c.t.Fatal(err)
	}
	return picture
}
