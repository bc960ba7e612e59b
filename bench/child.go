package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// The processes of a run: the one that measures talks to the others over their
// standard input and output, a JSON value a line.

// command is what a process is told to do.
type command struct {
	Do string `json:"do"`
	// Index and Version are of the resource to be changed; a negative index means all.
	Index   int `json:"index,omitempty"`
	Version int `json:"version,omitempty"`

	// Of the swarm.
	Address string `json:"address,omitempty"`
	Clients int    `json:"clients,omitempty"`
	// PerConn is how many streams share a connection.
	PerConn int `json:"per_conn,omitempty"`
	// AtOnce has all of them come at once, and not some after the other.
	AtOnce bool `json:"at_once,omitempty"`
	// Deaf is how many of the clients never read.
	Deaf int `json:"deaf,omitempty"`
	// Group tells clients apart that are to be told apart.
	Group string `json:"group,omitempty"`
	// First is the number of the first client.
	First int `json:"first,omitempty"`
	// Count is after how many sightings an await ends; 0 for one by each client.
	Count int `json:"count,omitempty"`
	// Each counts the resources of the version, and not the clients that have it.
	Each    bool          `json:"each,omitempty"`
	Timeout time.Duration `json:"timeout,omitempty"`
	Spec    *Spec         `json:"spec,omitempty"`
	// Rate and For are of updates in a row.
	Rate int           `json:"rate,omitempty"`
	For  time.Duration `json:"for,omitempty"`
}

// answer is what came of a command.
type answer struct {
	Error string `json:"error,omitempty"`
	// Address is where a server serves, in its first answer.
	Address string `json:"address,omitempty"`
	// At is when an update began, Median and Last when half of the clients, and the
	// last of them, had it: nanoseconds since 1970.
	At, Median, Last int64 `json:",omitempty"`
	// Slow is a latency above which one in a hundred is, and Median that in the middle,
	// in nanoseconds, when it is latencies that were asked for.
	Slow int64 `json:"slow,omitempty"`
	// Most is the longest latency, and Stamps how many resources came.
	Most     int64 `json:"most,omitempty"`
	Stamps   int64 `json:"stamps,omitempty"`
	Messages int64 `json:"messages,omitempty"`
	Bytes    int64 `json:"bytes,omitempty"`
	// Removed is how many names clients were told as removed, in delta.
	Removed int64    `json:"removed,omitempty"`
	Counts  *counted `json:"counts,omitempty"`
}

// counted is what an origin has seen.
type counted struct {
	Streams       int   `json:"streams"`
	Subscriptions int   `json:"subscriptions"`
	Requests      int64 `json:"requests"`
	RequestBytes  int64 `json:"request_bytes"`
	ResponseBytes int64 `json:"response_bytes"`
}

// serveCommands is the side of the process that is told: it answers each command,
// and ends with its input.
func serveCommands(first answer, do func(*command) (answer, error)) error {
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	if err := out.Encode(first); err != nil {
		return err
	}
	for {
		var c command
		if err := in.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		a, err := do(&c)
		if err != nil {
			a.Error = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

// child is a process.
type child struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	enc     *json.Encoder
	dec     *json.Decoder
	address string
	// operator is where a relay has its metrics.
	operator string
	files    []string // to be removed
	// ended is closed when a process has ended that something waits for already.
	ended <-chan struct{}
}

// startRole starts a role of this program.
func startRole(name, role string, spec *Spec) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	arg, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.Command(self, "-role", role, "-spec", string(arg))}
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.enc, c.dec = json.NewEncoder(c.in), json.NewDecoder(bufio.NewReader(out))
	var first answer
	if err := c.dec.Decode(&first); err != nil {
		c.stop()
		return nil, fmt.Errorf("%s: did not start: %w", name, err)
	}
	c.address = first.Address
	return c, nil
}

// do has the process carry out a command.
func (c *child) do(cmd command) (answer, error) {
	var a answer
	if err := c.enc.Encode(cmd); err != nil {
		return a, fmt.Errorf("%s: %s: %w", c.name, cmd.Do, err)
	}
	if err := c.dec.Decode(&a); err != nil {
		return a, fmt.Errorf("%s: %s: %w", c.name, cmd.Do, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s: %s", c.name, cmd.Do, a.Error)
	}
	return a, nil
}

func (c *child) stop() {
	if c.in != nil {
		_ = c.in.Close()
	}
	_ = c.cmd.Process.Kill()
	if c.ended != nil {
		<-c.ended
	} else {
		_ = c.cmd.Wait()
	}
	for _, f := range c.files {
		_ = os.RemoveAll(f)
	}
}

// cpu is what the process has used, by the operating system's account.
func (c *child) cpu() (time.Duration, error) {
	d, err := cpuOf(c.cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("%s: cannot read its CPU time: %w", c.name, err)
	}
	return d, nil
}

// forgetPeak has the most memory count from now on.
func (c *child) forgetPeak() error {
	const peak = "5"
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", c.cmd.Process.Pid), []byte(peak), 0)
}

// rss returns the resident memory of the process, and the most that it ever was, in
// bytes.
func (c *child) rss() (now, peak int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var to *int64
		switch {
		case strings.HasPrefix(line, "VmRSS:"):
			to = &now
		case strings.HasPrefix(line, "VmHWM:"):
			to = &peak
		default:
			continue
		}
		kb, err := strconv.ParseInt(strings.Fields(line)[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		*to = kb << 10
	}
	return now, peak, nil
}

// metric reads one of a relay's metrics.
func (c *child) metric(name string) (float64, error) {
	response, err := http.Get("http://" + c.operator + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	value, ok := metricIn(string(page), name)
	if !ok {
		return 0, fmt.Errorf("%s: has no metric %s", c.name, name)
	}
	return value, nil
}
