package neighbours

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

var latencyFlag = flag.Bool("latency", false, "measure what the quiet tenant waits for, before and during each row")

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	// alone is how long the quiet tenant is measured before a row, attacked how long
	// it is during the row at least, and loaded how long the load lasts.
	alone, attacked, loaded = 10 * time.Second, 20 * time.Second, 5 * time.Second
)

// quietEnv makes the test program a quiet tenant of the kubeconfig that it names: a
// process of its own, which no attacker's goroutines keep from running.
const quietEnv = "NEIGHBOURS_QUIET"

// samples are what a quiet tenant waited for: a read and a write each.
type samples struct {
	Took []time.Duration
	// Bad are answers that were refused or failed, by what they say.
	Bad map[string]int
}

// beQuiet reads and writes from one line of standard input to the next, and answers
// each second line with samples.
func beQuiet(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.Host = strings.TrimSuffix(config.Host, "/clusters/root") + "/clusters/root:quiet"
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	quiet := &tenant{config: config, http: client}
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- struct{}{}
		}
	}()
	for range lines {
		ctx, stop := context.WithCancel(context.Background())
		taken := make(chan samples)
		go func() { taken <- quiet.sample(ctx) }()
		<-lines
		stop()
		if err := json.NewEncoder(os.Stdout).Encode(<-taken); err != nil {
			return err
		}
	}
	return nil
}

// sample reads and writes until ctx ends.
func (u *tenant) sample(ctx context.Context) samples {
	s := samples{Bad: map[string]int{}}
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		for _, send := range []func() (int, []byte, error){
			func() (int, []byte, error) { return u.call(ctx, http.MethodGet, configMaps, "") },
			func() (int, []byte, error) {
				return u.call(ctx, http.MethodPut, configMaps+"/latency", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"latency"},"data":{"n":"%d"}}`, i))
			},
		} {
			if code, answer, err := send(); ctx.Err() == nil && (err != nil || code >= http.StatusBadRequest) {
				s.Bad[fmt.Sprintf("%d %.200s %v", code, answer, err)]++
			}
		}
		if ctx.Err() == nil {
			s.Took = append(s.Took, time.Since(start))
		}
	}
	slices.Sort(s.Took)
	return s
}

func (s samples) at(percent int) time.Duration {
	if len(s.Took) == 0 {
		return 0
	}
	return s.Took[len(s.Took)*percent/100].Round(10 * time.Microsecond)
}

// observer is a quiet tenant in a process of its own.
type observer struct {
	in  io.Writer
	out *json.Decoder
}

// observe starts the quiet tenant, and has everything else in this process give way to
// it and to the servers: an attacker's clients are elsewhere.
func (w *world) observe(t *testing.T) {
	t.Helper()
	if !*latencyFlag {
		return
	}
	w.quiet.must(t, http.MethodPost, configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"latency"}}`)
	program, err := os.Executable()
	require.NoError(t, err)
	command := exec.CommandContext(t.Context(), program)
	command.Env = append(os.Environ(), quietEnv+"="+w.Kubeconfig())
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = command.Wait()
	})
	w.observer = &observer{in: in, out: json.NewDecoder(out)}
	threads, err := os.ReadDir("/proc/self/task") // each has a priority of its own
	require.NoError(t, err)
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		require.NoError(t, err)
		const nice = 15
		require.NoError(t, syscall.Setpriority(syscall.PRIO_PROCESS, id, nice))
	}
}

// begin has the quiet tenant begin; end returns what it has waited for.
func (o *observer) begin(t *testing.T) (end func() samples) {
	t.Helper()
	_, err := io.WriteString(o.in, "begin\n")
	require.NoError(t, err)
	return func() samples {
		var s samples
		_, err := io.WriteString(o.in, "end\n")
		if err == nil {
			err = o.out.Decode(&s)
		}
		if err != nil {
			t.Error(err)
		}
		return s
	}
}

// measured runs a row. With -latency it repeats the row for a while, and prints what
// the quiet tenant waits for a read and a write before that and during it.
func (w *world) measured(t *testing.T, name string, row func(*testing.T, *world)) {
	if !*latencyFlag {
		row(t, w)
		return
	}
	end := w.observer.begin(t)
	time.Sleep(alone) //nolint:forbidigo // it is measured, not waited for
	quiet := end()
	end = w.observer.begin(t)
	runs := 0
	for start := time.Now(); time.Since(start) < attacked && !t.Failed(); runs++ {
		w.mark = newMark()
		t.Run(strconv.Itoa(runs), func(t *testing.T) { row(t, w) })
	}
	during := end()
	fmt.Printf("%-12s alone p50 %8v p99 %8v of %5d | during p50 %8v p99 %8v of %5d, %3d runs | p99 × %.1f, refused or failed: %v\n", name,
		quiet.at(50), quiet.at(99), len(quiet.Took), during.at(50), during.at(99), len(during.Took), runs, float64(during.at(99))/float64(quiet.at(99)), during.Bad)
}

// busy is no attack: it keeps as many cores busy as there are, and sends nothing.
// It says what a row costs others by what its own client computes.
func busy(t *testing.T, _ *world) {
	if !*latencyFlag {
		t.Skip("it is for comparison with -latency only")
	}
	ctx, stop := context.WithTimeout(t.Context(), loaded)
	defer stop()
	var cores sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		cores.Go(func() {
			for sum := sha256.Sum256(nil); ctx.Err() == nil; {
				sum = sha256.Sum256(sum[:])
			}
		})
	}
	cores.Wait()
}

// load is the row of an attacker that has nothing but requests: it writes, reads and
// deletes in sixteen connections.
func load(t *testing.T, w *world) {
	ctx, stop := context.WithTimeout(t.Context(), loaded)
	defer stop()
	var attacks sync.WaitGroup
	text := strings.Repeat("x", 4<<10)
	for i := range 16 {
		attacks.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("a%d-%d", i, n)
				_, _, _ = w.attacker.call(ctx, http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"text":%q}}`, name, text))
				_, _, _ = w.attacker.call(ctx, http.MethodGet, configMaps, "")
				_, _, _ = w.attacker.call(ctx, http.MethodDelete, configMaps+"/"+name, "")
			}
		})
	}
	attacks.Wait()
	code, _, err := w.quiet.call(t.Context(), http.MethodGet, configMaps, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
}
