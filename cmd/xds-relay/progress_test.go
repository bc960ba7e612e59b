package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestWhatTakesLongShowsHowFarItIs(t *testing.T) {
	for _, tt := range []struct {
		name     string
		terminal bool
		total    int64
		every    time.Duration // passes for each MiB
		want     string
	}{
		{
			"a bar on a terminal", true, 4 << 20, 150 * time.Millisecond,
			"\rcopying: 2.0 MiB of 4.0 MiB, 50 % [###############...............]" +
				"\rcopying: 4.0 MiB of 4.0 MiB, 100 % [##############################]" + "\r" + strings.Repeat(" ", 67) + "\r",
		},
		{"a terminal, and the end is not known", true, 0, 150 * time.Millisecond, "\rcopying: 2.0 MiB\rcopying: 4.0 MiB\r                \r"},
		{"lines elsewhere", false, 4 << 20, 6 * time.Second, "copying: 2.0 MiB of 4.0 MiB, 50 %\ncopying: 4.0 MiB of 4.0 MiB, 100 %\n"},
		{"nothing for what is short", true, 4 << 20, time.Millisecond, ""},
		{"nothing elsewhere for what takes seconds", false, 4 << 20, time.Second, ""},
	} {
		var out bytes.Buffer
		clock := time.Unix(0, 0)
		p := newProgress(&out, "copying", tt.total)
		p.terminal, p.now = tt.terminal, func() time.Time { return clock }
		p.begin()
		for range 4 {
			clock = clock.Add(tt.every)
			if n, err := p.Write(make([]byte, 1<<20)); n != 1<<20 || err != nil {
				t.Error(n, err)
			}
		}
		p.end()
		if out.String() != tt.want {
			t.Errorf("%s: got\n%q\nwant\n%q", tt.name, out.String(), tt.want)
		}
	}
	if isTerminal(new(bytes.Buffer)) {
		t.Error("a buffer is taken for a terminal")
	}
}
