package main

// The progress of a command that takes long, on standard error: a bar on a terminal, and lines in a log. The libraries for bars
// draw them or nothing, so the lines, which are what a job's log has, would be by hand as well.

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

const (
	// On a terminal, progress redraws a bar; elsewhere it prints a line from time to time. A command
	// that ends before that shows nothing.
	barEvery  = 200 * time.Millisecond
	lineEvery = 10 * time.Second
	barWidth  = 30
)

// progress counts the bytes that a command reads or writes.
type progress struct {
	out      io.Writer
	what     string // such as "importing"
	total    int64  // 0: not known
	terminal bool
	now      func() time.Time

	done  int64
	next  time.Time
	drawn int // the width of the bar on the terminal
}

func newProgress(out io.Writer, what string, total int64) *progress {
	p := &progress{out: out, what: what, total: total, terminal: isTerminal(out), now: time.Now}
	p.begin()
	return p
}

func (p *progress) begin() { p.next = p.now().Add(p.every()) }

func (p *progress) every() time.Duration {
	if p.terminal {
		return barEvery
	}
	return lineEvery
}

// sizeOf returns the size of a file, or 0 if it has none, such as a pipe.
func sizeOf(file *os.File) int64 {
	if i, err := file.Stat(); err == nil && i.Mode().IsRegular() {
		return i.Size()
	}
	return 0
}

// reader counts what is read.
func (p *progress) reader(from io.Reader) io.Reader { return io.TeeReader(from, p) }

// Write implements io.Writer: it counts.
func (p *progress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if now := p.now(); !now.Before(p.next) {
		p.next = now.Add(p.every())
		p.draw()
	}
	return len(b), nil
}

func (p *progress) draw() {
	text := fmt.Sprintf("%s: %s", p.what, bytesOf(p.done))
	if p.total > 0 {
		part := min(float64(p.done)/float64(p.total), 1)
		text += fmt.Sprintf(" of %s, %.0f %%", bytesOf(p.total), 100*part)
		if p.terminal {
			full := int(part * barWidth)
			text += " [" + strings.Repeat("#", full) + strings.Repeat(".", barWidth-full) + "]"
		}
	}
	if !p.terminal {
		fmt.Fprintln(p.out, text)
		return
	}
	fmt.Fprintf(p.out, "\r%-*s", p.drawn, text)
	p.drawn = len(text)
}

// end clears the bar.
func (p *progress) end() {
	if p.drawn > 0 {
		fmt.Fprintf(p.out, "\r%*s\r", p.drawn, "")
		p.drawn = 0
	}
}

func bytesOf(n int64) string {
	const mebi = 1 << 20
	if n < mebi {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/mebi)
}
