package interop

// grpc-java and java-control-plane, which are programs in java/.

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xds-relay/xds-relay/integration/interop/peers"
)

// prepareJava builds the programs.
var prepareJava = sync.OnceValue(func() error {
	const folder = "java"
	for _, program := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return err
		}
	}
	hash := sha256.New()
	sources := append([]string{"pom.xml"}, filesIn(filepath.Join(folder, "src"))...)
	sources[0] = filepath.Join(folder, sources[0])
	for _, file := range sources {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d\n%s", file, len(content), content)
	}
	target := filepath.Join(folder, "target")
	return peers.Once(filepath.Join(target, ".built"), fmt.Appendf(nil, "%x\n", hash.Sum(nil)), func() error {
		if err := os.RemoveAll(target); err != nil {
			return err
		}
		return peers.RunIn(folder, "mvn", "--batch-mode", "--quiet", "compiler:compile", "dependency:copy-dependencies")
	})
})

// filesIn returns all files in a folder, sorted.
func filesIn(folder string) (files []string) {
	_ = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	return files
}

// java returns the command that runs a class of the programs. The options make a small process that starts
// fast.
func java(class string, args ...string) []string {
	return append([]string{
		"java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData",
		"-cp", "java/target/classes:java/target/lib/*", "interop." + class,
	}, args...)
}

func dialJava(t testing.TB, bootstrap, target string) shopper {
	t.Helper()
	return dialForeigner(t, "grpc-java", bootstrap, target, java("Client")...)
}

// javaControlPlane is java-control-plane, with one snapshot for all Nodes or with one for each Node's id.
type javaControlPlane struct {
	*peers.Process
	t        testing.TB
	address  string
	group    string // of nodeID
	commands io.Writer
	done     chan javaLine // the answers to commands, closed when the program's output ends
	version  int

	mu      sync.Mutex
	plane   *plane // records requests if not nil
	streams map[int]int
	owed    map[javaSubject]string // the nonces of responses that have no answer yet
}

// javaLine is a line that the program prints.
type javaLine struct {
	Address  string       `json:"address"`
	Done     *bool        `json:"done"`
	Error    string       `json:"error"`
	Request  *javaMessage `json:"request"`
	Response *javaMessage `json:"response"`
}

// javaMessage is a request or a response, without its resources.
type javaMessage struct {
	javaSubject
	Node        string   `json:"node"`
	Nonce       string   `json:"nonce"`
	Names       []string `json:"names"`     // of a SotW request
	Subscribe   []string `json:"subscribe"` // this and the next are of a delta request
	Unsubscribe []string `json:"unsubscribe"`
	Error       *string  `json:"error"` // of a request that is a NACK
}

// javaSubject is a type on a stream.
type javaSubject struct {
	Stream int    `json:"stream"`
	Type   string `json:"type"`
}

// The groups of Nodes that have the same snapshot.
const (
	oneForAll = "all"
	oneByID   = "node.id"
)

func startJavaControlPlane(f form) func(testing.TB) controlPlane {
	return func(t testing.TB) controlPlane { return newJavaControlPlane(t, f, oneForAll) }
}

func newJavaControlPlane(t testing.TB, f form, groups string) *javaControlPlane {
	t.Helper()
	required(t, "java-control-plane", prepareJava)
	command := java("ControlPlane", map[form]string{sotw: "sotw", delta: "delta"}[f], groups)
	cmd := exec.Command(command[0], command[1:]...)
	commands, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	j := &javaControlPlane{t: t, commands: commands, group: oneForAll, done: make(chan javaLine, 1), streams: map[int]int{}, owed: map[javaSubject]string{}}
	if groups == oneByID {
		j.group = nodeID
	}
	j.Process = start(t, "java-control-plane", cmd)
	go j.listen(lines)
	j.address = j.await().Address
	return j
}

// listen reads the lines that the program prints.
func (j *javaControlPlane) listen(lines io.Reader) {
	defer close(j.done)
	peers.EachLine(lines, func(line javaLine, err error) {
		switch {
		case err != nil:
			j.done <- javaLine{Error: err.Error()}
		case line.Request != nil:
			j.record(*line.Request)
		case line.Response != nil:
			j.mu.Lock()
			j.owed[line.Response.javaSubject] = line.Response.Nonce
			j.mu.Unlock()
		default:
			j.done <- line
		}
	})
}

// record records a request.
func (j *javaControlPlane) record(r javaMessage) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.owed[r.javaSubject] == r.Nonce {
		delete(j.owed, r.javaSubject)
	}
	if j.plane == nil {
		return
	}
	stream, known := j.streams[r.Stream]
	if !known {
		stream = j.plane.open()
		j.streams[r.Stream] = stream
	}
	var nack *statuspb.Status
	if r.Error != nil {
		nack = &statuspb.Status{Code: int32(codes.Unknown), Message: *r.Error}
	}
	j.plane.record(stream, r.Node, r.Type, nack)
}

// await waits for the answer to a command.
func (j *javaControlPlane) await() javaLine {
	j.t.Helper()
	line, err := peers.Receive(j.done)
	if err != nil || line.Error != "" || line.Done != nil && !*line.Done {
		j.t.Fatalf("java-control-plane answers %+v (%v)", line, err)
	}
	return line
}

// answered returns an error if a response has no answer yet.
func (j *javaControlPlane) answered() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.owed) > 0 {
		return fmt.Errorf("these responses have no answer: %v", j.owed)
	}
	return nil
}

// run runs a command, and waits until it is done.
func (j *javaControlPlane) run(command map[string]any) {
	j.t.Helper()
	text, err := json.Marshal(command)
	if err != nil {
		j.t.Fatal(err)
	}
	if _, err := fmt.Fprintf(j.commands, "%s\n", text); err != nil {
		j.t.Fatal(err)
	}
	j.await()
}

// end ends the program before the test does.
func (j *javaControlPlane) end(t testing.TB, signal os.Signal) {
	t.Helper()
	j.End(t, signal)
}

// turn replaces the snapshot.
func (j *javaControlPlane) turn(to world) {
	j.t.Helper()
	j.version++
	resources := []json.RawMessage{}
	for _, named := range to {
		for _, r := range named {
			text, err := protojson.Marshal(toAny(j.t, r))
			if err != nil {
				j.t.Fatal(err)
			}
			resources = append(resources, text)
		}
	}
	j.run(map[string]any{"set": j.group, "version": fmt.Sprint(j.version), "resources": resources})
}

// observe implements program.
func (j *javaControlPlane) observe(p *plane) (address string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.plane = p
	return j.address
}

func (j *javaControlPlane) target() string { return "xds:///shop" }

func (j *javaControlPlane) show(cluster string, at *backend) {
	j.turn(world{
		resource.ListenerType: {"shop": apiListener(j.t, "shop", "routes")},
		resource.RouteType:    {"routes": routesTo("routes", cluster)},
		resource.ClusterType:  {cluster: edsCluster(cluster)},
		resource.EndpointType: {cluster: endpointsAt(cluster, at)},
	})
}
