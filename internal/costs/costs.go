// Package costs counts the work of code, for tests. A nested loop is fast in every test, but
// slow for a client with 40,000 names. Fuzzing does not find such loops, and time
// measurements vary too much. So a test counts how often the statements of this project's
// packages run for n items, and for 2n.
//
// The counters are those of coverage, so tests that count are run with
//
//	go test -covermode=atomic -coverpkg=./... -run '^TestWork' ...
//
// as `make test-all` does. Otherwise they are skipped. Loops inside the standard library are
// not counted, unless they call a function of this project.
package costs

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// tries is the number of attempts before the test fails: hash tables have a random layout, and do
// not grow at the same point each time.
const tries = 3

// most is the maximal ratio of the work for 2n and for n: 2, and a little more for sorting.
const most = 2.2

// sizeVar is the environment variable with the number of items for a test process.
const sizeVar = "COSTS_WORK_OF"

// Linear fails the test if the work for 2n is more than 2.2 times the work for n. It runs the test
// again in processes of its own, so the statements before the call of Linear also run there. work
// does everything that is to be counted.
func Linear(t *testing.T, n int, work func(t *testing.T, n int)) {
	t.Helper()
	if size := os.Getenv(sizeVar); size != "" {
		n, err := strconv.Atoi(size)
		if err != nil {
			t.Fatal(err)
		}
		work(t, n)
		return
	}
	if testing.CoverMode() != "atomic" {
		t.Skip("work is counted with -covermode=atomic -coverpkg=./...")
	}
	for range tries {
		once, twice := count(t, n), count(t, 2*n)
		ratio := float64(twice) / float64(once)
		t.Logf("%d statements for %d, %d for %d: %.2f times", once, n, twice, 2*n, ratio)
		if ratio <= most {
			return
		}
	}
	t.Errorf("the work for %d is each time more than %.1f times that for %d", 2*n, most, n)
}

// count runs the test in a process of its own, and returns the number of statements that ran.
func count(t *testing.T, n int) (statements int) {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "profile")
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", strings.Join(pattern, "/"), "-test.count", "1", "-test.coverprofile", profile)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", sizeVar, n))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("for %d: %v\n%s", n, err, out)
	}
	f, err := os.Open(profile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// file.go:line.column,line.column statements count
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 { // the first line is the mode
			continue
		}
		total, err1 := strconv.Atoi(fields[1])
		times, err2 := strconv.Atoi(fields[2])
		if err1 != nil || err2 != nil {
			t.Fatalf("a profile with the line %q", lines.Text())
		}
		statements += total * times
	}
	if statements == 0 {
		t.Fatalf("for %d: no statement was counted", n)
	}
	return statements
}
