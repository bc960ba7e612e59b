package peers

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Java is the folder of the programs that use grpc-java and java-control-plane.
type Java string

// Build builds the programs, unless an earlier run has done so.
func (j Java) Build() error {
	for _, program := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return err
		}
	}
	hash := sha256.New()
	for _, file := range append([]string{"pom.xml"}, j.sources()...) {
		content, err := os.ReadFile(filepath.Join(string(j), file))
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d\n%s", file, len(content), content)
	}
	target := filepath.Join(string(j), "target")
	return Once(filepath.Join(target, ".built"), fmt.Appendf(nil, "%x\n", hash.Sum(nil)), func() error {
		if err := os.RemoveAll(target); err != nil {
			return err
		}
		return RunIn(string(j), "mvn", "--batch-mode", "--quiet", "compiler:compile", "dependency:copy-dependencies")
	})
}

// sources returns the paths of all sources in the folder, sorted.
func (j Java) sources() (files []string) {
	_ = fs.WalkDir(os.DirFS(string(j)), "src", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	return files
}

// Command returns the command that runs a class of the programs. The options make a small process that starts fast.
func (j Java) Command(class string, args ...string) []string {
	classes := filepath.Join(string(j), "target", "classes") + ":" + filepath.Join(string(j), "target", "lib", "*")
	return append([]string{
		"java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData",
		"-cp", classes, "interop." + class,
	}, args...)
}

// The groups of Nodes that have the same snapshot of java-control-plane.
const (
	OneForAll = "all"
	OneByID   = "node.id"
)

// JavaControlPlane is java-control-plane, with one snapshot for all Nodes or with one for each Node's id.
type JavaControlPlane struct {
	*Process
	t        testing.TB
	commands io.Writer
	heard    func(JavaRequest)
	done     chan javaLine // the answers to commands, closed when the program's output ends

	mu   sync.Mutex
	owed map[javaSubject]string // the nonces of responses that have no answer yet, on streams that have not ended
}

// JavaRequest is a request that java-control-plane has received.
type JavaRequest struct {
	javaSubject
	Nonce     string   `json:"nonce"`
	Node      string   `json:"node"`
	Names     []string `json:"names"`     // of a SotW request
	Subscribe []string `json:"subscribe"` // of a delta request
	Error     *string  `json:"error"`     // of a request that is a NACK
}

// javaSubject is a type on a stream.
type javaSubject struct {
	Stream int    `json:"stream"`
	Type   string `json:"type"`
}

// javaLine is a line that the program prints.
type javaLine struct {
	Address  string       `json:"address"`
	Done     *bool        `json:"done"`
	Error    string       `json:"error"`
	Request  *JavaRequest `json:"request"`
	Ended    *int         `json:"ended"` // a stream
	Response *struct {
		javaSubject
		Nonce string `json:"nonce"`
	} `json:"response"`
}

// StartControlPlane starts java-control-plane, which does not serve yet. The form is "sotw", "delta" or "both". Each
// request is given to heard, in a goroutine.
func (j Java) StartControlPlane(t testing.TB, form, groups string, heard func(JavaRequest)) *JavaControlPlane {
	t.Helper()
	command := j.Command("ControlPlane", form, groups)
	cmd := exec.Command(command[0], command[1:]...)
	commands, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var logs Output
	logs.Show(t, "java-control-plane")
	p := &JavaControlPlane{t: t, commands: commands, heard: heard, done: make(chan javaLine, 1), owed: map[javaSubject]string{}}
	p.Process = Start(t, "java-control-plane", cmd, &logs, os.Kill)
	go p.listen(lines)
	return p
}

// listen reads the lines that the program prints.
func (p *JavaControlPlane) listen(lines io.Reader) {
	defer close(p.done)
	EachLine(lines, func(line javaLine, err error) {
		switch {
		case err != nil:
			p.done <- javaLine{Error: err.Error()}
		case line.Request != nil:
			p.mu.Lock()
			if p.owed[line.Request.javaSubject] == line.Request.Nonce {
				delete(p.owed, line.Request.javaSubject)
			}
			p.mu.Unlock()
			p.heard(*line.Request)
		case line.Ended != nil:
			p.mu.Lock()
			maps.DeleteFunc(p.owed, func(s javaSubject, _ string) bool { return s.Stream == *line.Ended })
			p.mu.Unlock()
		case line.Response != nil:
			p.mu.Lock()
			p.owed[line.Response.javaSubject] = line.Response.Nonce
			p.mu.Unlock()
		default:
			p.done <- line
		}
	})
}

// Serve makes the control plane serve at an address, which may have port 0, and returns the address.
func (p *JavaControlPlane) Serve(address string) string {
	p.t.Helper()
	return p.run(map[string]any{"serve": address}).Address
}

// Set replaces the snapshot of a group of Nodes.
func (p *JavaControlPlane) Set(group, version string, resources []proto.Message) {
	p.t.Helper()
	texts := []json.RawMessage{}
	for _, r := range resources {
		value, err := anypb.New(r)
		if err != nil {
			p.t.Fatal(err)
		}
		text, err := protojson.Marshal(value)
		if err != nil {
			p.t.Fatal(err)
		}
		texts = append(texts, text)
	}
	p.run(map[string]any{"set": group, "version": version, "resources": texts})
}

// run runs a command, and returns the answer.
func (p *JavaControlPlane) run(command map[string]any) javaLine {
	p.t.Helper()
	text, err := json.Marshal(command)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(p.commands, "%s\n", text); err != nil {
		p.t.Fatal(err)
	}
	line, err := Receive(p.done)
	if err != nil || line.Error != "" || line.Done != nil && !*line.Done {
		p.t.Fatalf("java-control-plane answers %+v (%v)", line, err)
	}
	return line
}

// Answered returns an error if a response has no answer yet.
func (p *JavaControlPlane) Answered() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.owed) > 0 {
		return fmt.Errorf("these responses have no answer: %v", p.owed)
	}
	return nil
}
