package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

func main() {
	quick := flag.Bool("quick", false, "small numbers, one round, no peers: about a minute")
	only := flag.String("only", "", "scenarios to run, by the beginnings of their ids, separated by commas")
	rounds := flag.Int("rounds", 0, "how often each system is measured in each scenario (3, or 1 if quick)")
	out := flag.String("out", "bench/out", "folder for results.md, results.json and the plots")
	relay := flag.String("relay", "", "the relay's binary (built if not given)")
	role := flag.String("role", "", "internal: what this process is to be")
	spec := flag.String("spec", "", "internal: what it is to serve, as JSON")
	flag.Parse()
	var err error
	if *role != "" {
		err = play(*role, *spec)
	} else {
		err = measure(*quick, *only, *rounds, *out, *relay)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// play is one of the processes of a run.
func play(role, arg string) error {
	var spec Spec
	if err := json.Unmarshal([]byte(arg), &spec); err != nil {
		return err
	}
	roles := map[string]func(*Spec) error{
		"floor": runFloor, "origin": runOrigin, "linear": runLinear, "snapshot": runSnapshot, "hop": runHop,
		"swarm": func(*Spec) error { return runSwarm() },
	}
	run := roles[role]
	if run == nil {
		return fmt.Errorf("no role %q", role)
	}
	return run(&spec)
}

// measure runs the scenarios. In each round every system has its turn, so that what
// else the machine does is shared by all.
func measure(quick bool, only string, rounds int, out, relay string) error {
	if rounds == 0 {
		rounds = 3
		if quick {
			rounds = 1
		}
	}
	if relay == "" {
		dir, err := os.MkdirTemp("", "xds-relay-bench")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if relay, err = buildRelay(dir); err != nil {
			return fmt.Errorf("cannot build the relay: %w", err)
		}
	}
	todo := slices.DeleteFunc(scenarios(), func(sc scenario) bool { return only != "" && !sc.among(strings.Split(only, ",")) })
	b := &bench{relay: relay, quick: quick}
	began := time.Now()
	var results []result
	for i, sc := range todo {
		start := time.Now()
		of := make([]result, len(sc.tables))
		for k, t := range sc.tables {
			of[k] = result{ID: t.id, Title: t.title}
		}
		rounds := rounds
		if sc.rounds > 0 {
			rounds = min(rounds, sc.rounds)
		}
		for round := range rounds {
			for _, system := range sc.systems {
				if peer := system == systemLinear || system == systemSnapshot; peer && b.quick {
					continue
				}
				fmt.Fprintf(os.Stderr, "\r\033[K%4.0fs  %d/%d %s  round %d/%d  %s", time.Since(began).Seconds(), i+1, len(todo), of[0].ID, round+1, rounds, system)
				metrics, err := sc.run(b, system)
				if err != nil {
					fmt.Fprintf(os.Stderr, "\nbench: %s: %s: %v\n", of[0].ID, system, err)
					of[0].Failed = append(of[0].Failed, fmt.Sprintf("%s: %v", system, err))
					continue
				}
				for k := range of {
					of[k].add(system, round, metrics[k])
				}
			}
			if sc.compare != nil {
				sc.compare(&of[0], round)
			}
		}
		of[0].Seconds = time.Since(start).Round(time.Second).Seconds()
		results = append(results, of...)
		if err := write(out, quick, results); err != nil { // what there is, should the rest fail
			return err
		}
	}
	fmt.Fprintln(os.Stderr)
	text, err := os.ReadFile(out + "/results.md")
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}
