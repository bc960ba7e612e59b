package relay

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// lossTables are the tables of the loss matrix: for each state of the relay, the states of the control plane, each
// with its transcript.
var lossTables = []struct {
	title   string
	relay   string      // in the summary
	columns [][2]string // transcript, title
}{
	{"A relay that has just been started, without a store", "started, no store", [][2]string{
		{"cold_all", "there"}, {"cold_away", "never reached"}, {"cold_refusing", "refusing"}, {"cold_half_open", "half-open"}, {"cold_silent", "silent"},
		{"cold_restarting", "restarting"}, {"cold_nothing", "back with nothing"}, {"cold_half", "half back"},
	}},
	{"A relay that has just been started, with its store", "started, with a store", [][2]string{
		{"store_all", "there"}, {"store_newer", "there, with something newer"}, {"store_away", "away"}, {"store_refusing", "refusing"}, {"store_half_open", "half-open"}, {"store_silent", "silent"},
		{"store_restarting", "restarting"}, {"store_nothing", "back with nothing"}, {"store_half", "half back"},
		{"store_behind", "away, clients have something newer"}, {"store_behind_silent", "silent, clients have something newer"},
	}},
	{"A relay that runs", "running", [][2]string{
		{"warm_away", "away"}, {"warm_refusing", "refusing"}, {"warm_half_open", "half-open"}, {"warm_silent", "silent"},
		{"warm_restarting", "restarting"}, {"warm_nothing", "back with nothing"}, {"warm_half", "half back"},
		{"warm_nothing_for_good", "nothing for good"}, {"warm_half_for_good", "half for good"},
	}},
	{"A relay that runs: the control plane goes away, and another server of its authority takes over", "running, another server takes over", [][2]string{
		{"failover_half", "with half"}, {"failover_nothing", "with nothing"},
	}},
	{"A relay that has just been started: the control plane is away, and another server has less", "started, another server has less", [][2]string{
		{"failover_cold_half", "half"}, {"failover_cold_nothing", "nothing"},
		{"failover_store_half", "half, and there is a store"}, {"failover_store_nothing", "nothing, and there is a store"},
	}},
}

// lossPage is a page with a part that is made of the transcripts.
type lossPage struct {
	path, begin, end string
	markdown         func(*testing.T) string
}

var lossPages = map[string]lossPage{
	"matrix": {
		"testdata/loss.md",
		"<!-- The tables of the loss matrix: go test ./relay -run 'Loss|Worse' -rewrite -->\n",
		"<!-- The end of the loss matrix -->\n",
		lossMarkdown,
	},
	"summary": {
		"../docs/safety.md",
		"<!-- The summary of the loss matrix: go test ./relay -run 'Loss|Worse' -rewrite -->\n",
		"<!-- The end of the summary -->\n",
		lossSummary,
	},
}

// With -rewrite, the test writes the pages.
func TestLossTablesOfThePagesAreWhatWasRecorded(t *testing.T) {
	for name, page := range lossPages {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(page.path)
			if err != nil {
				t.Fatal(err)
			}
			before, rest, ok := strings.Cut(string(text), page.begin)
			shown, after, ok2 := strings.Cut(rest, page.end)
			if !ok || !ok2 {
				t.Fatalf("%s has no place for it", page.path)
			}
			want := page.markdown(t)
			if f := flag.Lookup("rewrite"); f != nil && f.Value.String() == "true" {
				if err := os.WriteFile(page.path, []byte(before+page.begin+want+page.end+after), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if shown != want {
				t.Errorf("%s is not what the transcripts in %s say: write it with -rewrite", page.path, lossFolder)
			}
		})
	}
}

// lossOver returns the services over which a subject is requested, empty for all of them.
func lossOver(subject, session string, services []string) string {
	var all []string
	for i := range lossSubjects {
		if s := &lossSubjects[i]; s.name == subject {
			all = slices.DeleteFunc(slices.Clone(lossServices), func(service string) bool {
				return !s.over(service) || session == "open" && (service == "rest" || service == "fetch")
			})
		}
	}
	if len(services) == len(all) {
		return ""
	}
	over := strings.Join(services, ", ")
	over = strings.ReplaceAll(over, "delta, single delta", "delta")
	over = strings.ReplaceAll(over, "sotw, single sotw", "sotw")
	return " (" + strings.NewReplacer("delta, sotw, single delta, single sotw", "streams", "sotw", "SotW", "rest", "REST", "fetch", "Fetch").Replace(over) + ")"
}

// lossRecord is a line of a transcript.
type lossRecord struct{ subject, service, session, cell string }

// lossMarkdown makes the tables of the transcripts.
func lossMarkdown(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	listed := map[string]bool{}
	for _, table := range lossTables {
		fmt.Fprintf(&out, "\n**%s**\n\n| session | the client requests |", table.title)
		type row struct {
			session, subject, service string
			cells                     []string
		}
		var rows []*row
		at := map[string]*row{}
		for i, c := range table.columns {
			fmt.Fprintf(&out, " [%s](%s/%s.txt) |", c[1], filepath.Base(lossFolder), c[0])
			listed[c[0]] = true
			for _, r := range readLossTranscript(t, c[0]) {
				id := r.session + "/" + r.subject + "/" + r.service
				if at[id] == nil {
					at[id] = &row{session: r.session, subject: r.subject, service: r.service}
					rows = append(rows, at[id])
				}
				if len(at[id].cells) != i {
					t.Fatalf("%s of %s is in other transcripts of its table, or twice", id, c[0])
				}
				at[id].cells = append(at[id].cells, r.cell)
			}
		}
		fmt.Fprintf(&out, "\n|%s\n", strings.Repeat("---|", 2+len(table.columns)))
		slices.SortStableFunc(rows, func(a, b *row) int { return strings.Compare(a.session, b.session) })
		for i, r := range rows {
			if r == nil {
				continue
			}
			who := []string{r.subject}
			services := map[string][]string{r.subject: {r.service}}
			for j := i + 1; j < len(rows); j++ {
				if o := rows[j]; o != nil && o.session == r.session && slices.Equal(o.cells, r.cells) {
					if services[o.subject] == nil {
						who = append(who, o.subject)
					}
					services[o.subject] = append(services[o.subject], o.service)
					rows[j] = nil
				}
			}
			for k, subject := range who {
				who[k] += lossOver(subject, r.session, services[subject])
			}
			fmt.Fprintf(&out, "| %s | %s | %s |\n", r.session, strings.Join(who, "<br>"), strings.Join(r.cells, " | "))
		}
	}
	files, err := filepath.Glob(lossFolder + "/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".txt"); !listed[name] {
			t.Errorf("no table has %s", f)
		}
	}
	return out.String() + "\n"
}

// lossSummary makes the table of what clients are better and worse off in than with a direct connection. Names are in
// parentheses if that is so over some services only, or with some forms of the control plane.
func lossSummary(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	out.WriteString("\n| relay | control plane | fresh | resumed | open |\n|---|---|---|---|---|\n")
	for _, table := range lossTables {
		var planes, rows []string // one row for the control planes with equal cells
		for _, column := range table.columns {
			records := readLossTranscript(t, column[0])
			var row strings.Builder
			for _, session := range []string{"fresh", "resumed", "open"} {
				fmt.Fprintf(&row, " %s |", lossCompared(records, session))
			}
			if i := slices.Index(rows, row.String()); i >= 0 {
				planes[i] += "; " + column[1]
				continue
			}
			planes, rows = append(planes, column[1]), append(rows, row.String())
		}
		for i, row := range rows {
			fmt.Fprintf(&out, "| %s | %s |%s\n", table.relay, planes[i], row)
		}
	}
	return out.String() + "\n"
}

// lossCompared names what clients of a session are better and worse off in.
func lossCompared(records []lossRecord, session string) string {
	if !slices.ContainsFunc(records, func(r lossRecord) bool { return r.session == session }) {
		return "-"
	}
	var parts []string
	for _, sign := range []string{"▲", "▼"} {
		var names []string
		all := true
		for _, subject := range lossSubjects {
			runs, hits := 0, 0
			for _, r := range records {
				if r.session == session && r.subject == subject.name {
					runs++
					hits += strings.Count(r.cell, sign)
					if !strings.Contains(r.cell, "delta: ") {
						hits += strings.Count(r.cell, sign) // a cell for both forms
					}
				}
			}
			if runs == 0 {
				continue
			}
			name := strings.NewReplacer("glob, as Envoy", "Envoy's glob", "clusters", "Clusters").Replace(subject.name)
			switch hits {
			case 0:
				all = false
			case 2 * runs:
				names = append(names, name)
			default:
				all = false
				names = append(names, "("+name+")")
			}
		}
		if all {
			names = []string{"all"}
		}
		if names != nil {
			parts = append(parts, sign+" "+strings.Join(names, ", "))
		}
	}
	return cmp.Or(strings.Join(parts, " "), "=")
}

var lossSpaces = regexp.MustCompile(`\s+\| `)

func readLossTranscript(t *testing.T, name string) (records []lossRecord) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(lossFolder, name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	_, lines, _ := strings.Cut(string(text), "without the relay\n")
	for line := range strings.Lines(lines) {
		parts := lossSpaces.Split(strings.TrimSpace(line), -1)
		who := strings.Split(parts[0], ", ")
		n := len(who)
		subject := strings.Join(who[:n-2], ", ")
		var cells []string
		for _, cell := range parts[1:] {
			cells = append(cells, lossWords(subject, cell))
		}
		cell := cells[0]
		if cells[1] != cell {
			cell = "delta: " + cell + "<br>SotW: " + cells[1]
		}
		if same := strings.TrimLeft(cell, "▲▼ "); same != cells[2] {
			cell += "<br>*" + cells[2] + "*"
		}
		records = append(records, lossRecord{subject, who[n-2], who[n-1], cell})
	}
	return records
}

var lossNumber = regexp.MustCompile(`\d+`)

// lossWords writes what a client is sent without what differs from client to client and takes nothing
// away: numbers, seconds, what is sent again, which error it is.
func lossWords(subject, cell string) string {
	all := map[string]string{"clusters by name": "2", "endpoints by name": "2", "list": "1", "view": "36"}[subject]
	if all == "" {
		all = "24"
	}
	cell, better := strings.CutSuffix(cell, " (better)")
	cell, worse := strings.CutSuffix(cell, " (worse)")
	var steps []lossStep
	failed := ""
	for step := range strings.SplitSeq(cell, ", ") {
		what, at, _ := strings.Cut(step, " @")
		is := lossStep{at: at}
		for _, w := range lossWord.FindAllStringSubmatch(what, -1) {
			sign, word := w[1], w[3]
			n, _ := strconv.Atoi(w[2])
			switch {
			case w[0] == "":
			case w[2] == "" && word == "empty":
				is.empty = true
			case w[2] == "" && word == "NotFound":
				failed = "NOT_FOUND"
			case w[2] == "" && word == "stream ends":
				failed = cmp.Or(failed, word)
			case w[2] == "" || sign == "" && word == "": // of HTTP
				failed = "error"
			case sign == "+":
				is.added = n
			case sign == "-":
				is.taken = n
			case word == "newer":
				is.newer = n
			case word == "OLDER":
				is.older = n
			}
		}
		last := len(steps) - 1
		switch {
		case is.added+is.taken+is.newer+is.older == 0 && !is.empty:
		case last >= 0 && is.added+is.newer+is.older+steps[last].added+steps[last].newer+steps[last].older == 0 && !strings.HasSuffix(is.at, "m"):
			steps[last].taken += is.taken
			steps[last].empty = steps[last].empty || is.empty
		case last >= 0 && is.taken+is.newer+is.older+steps[last].taken+steps[last].newer+steps[last].older == 0 && !strings.HasSuffix(is.at, "m"):
			steps[last].added += is.added
		default:
			steps = append(steps, is)
		}
	}
	var words []string
	for _, s := range steps {
		word := lossNumber.ReplaceAllStringFunc(s.String(), func(n string) string {
			return map[bool]string{true: "all", false: "part"}[n == all]
		})
		if strings.HasSuffix(s.at, "m") {
			word += " @" + s.at
		}
		words = append(words, word)
	}
	if words == nil {
		words = []string{cmp.Or(failed, "-")}
	}
	return map[bool]string{true: "▲ "}[better] + map[bool]string{true: "▼ "}[worse] + strings.Join(words, ", ")
}

var lossWord = regexp.MustCompile(`([+-]?)(?:(\d+) ?)?(again|newer|OLDER|stream ends|empty|[A-Z]\w+)?`)
