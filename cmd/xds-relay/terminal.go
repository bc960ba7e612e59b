package main

// What commands print on a terminal only: colours, and a screen that is drawn again.

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// isTerminal reports whether out is a terminal that can be drawn on.
func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(file.Fd())) //nolint:gosec // a descriptor is a small number
}

// colours paints words, if on.
type colours struct{ on bool }

// coloursOf returns colours for a terminal, unless the user wants none (https://no-color.org).
func coloursOf(out io.Writer) colours {
	return colours{on: isTerminal(out) && os.Getenv("NO_COLOR") == ""}
}

func (c colours) paint(sgr, text string) string {
	if !c.on || text == "" {
		return text
	}
	return "\x1b[" + sgr + "m" + text + "\x1b[0m"
}

func (c colours) red(text string) string    { return c.paint("31", text) }
func (c colours) green(text string) string  { return c.paint("32", text) }
func (c colours) yellow(text string) string { return c.paint("33", text) }
func (c colours) bold(text string) string   { return c.paint("1", text) }

// changed paints a line of a difference.
func (c colours) changed(line string) string {
	switch {
	case strings.HasPrefix(line, "+"):
		return c.green(line)
	case strings.HasPrefix(line, "-"):
		return c.red(line)
	}
	return line
}

// clearScreen moves to the top of the screen, and clears the rest of it.
const clearScreen = "\x1b[H\x1b[2J"
