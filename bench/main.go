package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "small numbers, one round, no peers: about five minutes")
	flag.StringVar(&o.only, "only", "", "scenarios to run, by the beginnings of their ids, separated by commas")
	flag.IntVar(&o.rounds, "rounds", 0, "how often each system is measured in each scenario (3, 1 if quick, 6 with -base)")
	flag.StringVar(&o.out, "out", "out", "folder for results.md, results.json and the plots, or for compare.md and compare.json")
	flag.StringVar(&o.relay, "relay", "", "the relay's binary (built if not given)")
	flag.StringVar(&o.base, "base", "", "compare the relay of this checkout with that of this commit, instead of all systems")
	role := flag.String("role", "", "internal: the role of this process")
	spec := flag.String("spec", "", "internal: its Spec, as JSON")
	flag.Parse()
	var err error
	if *role != "" {
		err = play(*role, *spec)
	} else {
		err = measure(&o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the options of a run.
type options struct {
	quick            bool
	only             string
	rounds           int
	out, relay, base string
}

// play runs one of the processes of a run.
func play(role, arg string) error {
	var spec Spec
	if err := json.Unmarshal([]byte(arg), &spec); err != nil {
		return err
	}
	roles := map[string]func(*Spec) error{
		"floor": runFloor, "origin": runOrigin, "linear": runLinear, "snapshot": runSnapshot, "hop": runHop, "poll floor": runPollFloor,
		"swarm": func(*Spec) error { return runSwarm() },
	}
	run := roles[role]
	if run == nil {
		return fmt.Errorf("no role %q", role)
	}
	return run(&spec)
}

// measure runs the scenarios and prints the results.
func measure(o *options) error {
	todo, err := chosen(o.only)
	if err != nil {
		return err
	}
	cleanUp, err := ownFolder()
	if err != nil {
		return err
	}
	defer cleanUp()
	if o.relay == "" {
		if o.relay, err = buildRelay(os.TempDir()); err != nil {
			return fmt.Errorf("cannot build the relay: %w", err)
		}
	}
	if o.base != "" {
		return compare(o, todo)
	}
	b := &bench{binary: o.relay, quick: o.quick}
	turns := func(sc *scenario, _ int) (all []turn) {
		for _, system := range sc.systems {
			if peer := system == systemLinear || system == systemSnapshot; !peer || !b.quick {
				all = append(all, turn{system, system, b})
			}
		}
		return all
	}
	rounds := func(sc *scenario) int {
		n := o.rounds
		if n == 0 {
			n = 3
			if o.quick {
				n = 1
			}
		}
		if sc.rounds > 0 {
			n = min(n, sc.rounds)
		}
		return n
	}
	if err := runAll(todo, rounds, turns, func(results []result) error { return write(o.out, o.quick, results) }); err != nil {
		return err
	}
	text, err := os.ReadFile(o.out + "/results.md")
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

// chosen returns the scenarios of -only, or all.
func chosen(only string) ([]scenario, error) {
	all := scenarios()
	if only == "" {
		return all, nil
	}
	var ids []string
	for _, sc := range all {
		for _, t := range sc.tables {
			ids = append(ids, t.id)
		}
	}
	for prefix := range strings.SplitSeq(only, ",") {
		if !slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(id, prefix) }) {
			slices.Sort(ids)
			return nil, fmt.Errorf("-only: no scenario's id begins with %q (there are %s)", prefix, strings.Join(ids, " "))
		}
	}
	return slices.DeleteFunc(all, func(sc scenario) bool { return !sc.among(strings.Split(only, ",")) }), nil
}

// ownFolder creates a folder for all temporary files of this process and its children. cleanUp removes
// it, and so does an interrupt of the process.
func ownFolder() (cleanUp func(), err error) {
	dir, err := os.MkdirTemp("", "xds-relay-bench")
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("TMPDIR", dir); err != nil {
		return nil, err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		_ = os.RemoveAll(dir)
		fmt.Fprintln(os.Stderr, "\nbench: interrupted")
		os.Exit(130)
	}()
	return func() { _ = os.RemoveAll(dir) }, nil
}

// turn is the run of one system in a round of a scenario.
type turn struct {
	label  string // in the results
	system string // argument of scenario.run
	bench  *bench
}

// runAll runs scenarios. In each round every system has a turn, so that other load on the
// machine affects all of them. After each scenario, save gets the results so far.
func runAll(todo []scenario, rounds func(*scenario) int, turns func(sc *scenario, round int) []turn, save func([]result) error) error {
	began := time.Now()
	var results []result
	for i := range todo {
		sc := &todo[i]
		start := time.Now()
		of := make([]result, len(sc.tables))
		for k, t := range sc.tables {
			of[k] = result{ID: t.id, Title: t.title}
		}
		failed := map[string]bool{}
		n := rounds(sc)
		for round := range n {
			for _, t := range turns(sc, round) {
				if failed[t.label] {
					continue
				}
				fmt.Fprintf(os.Stderr, "\r\033[K%4.0fs  %d/%d %s  round %d/%d  %s", time.Since(began).Seconds(), i+1, len(todo), of[0].ID, round+1, n, t.label)
				metrics, err := sc.measure(t.bench, t.system)
				if err != nil {
					fmt.Fprintf(os.Stderr, "\nbench: %s: %s: %v\n", of[0].ID, t.label, err)
					of[0].Failed = append(of[0].Failed, fmt.Sprintf("%s: %v", t.label, err))
					failed[t.label] = true
					continue
				}
				for k := range of {
					of[k].add(t.label, round, metrics[k])
				}
			}
			if sc.compare != nil {
				sc.compare(&of[0], round)
			}
		}
		of[0].Seconds = time.Since(start).Round(time.Second).Seconds()
		results = append(results, of...)
		if err := save(results); err != nil { // so that they are not lost if a later scenario fails
			return err
		}
	}
	fmt.Fprintln(os.Stderr)
	return nil
}
