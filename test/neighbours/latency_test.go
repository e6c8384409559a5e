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
	// observed is the config map, and the binding, that the quiet tenant writes while it is measured.
	observed = "latency"
	// alone is how long the quiet tenant is measured before a row, attacked how long
	// it is during the row at least, and loaded how long the load lasts.
	alone, attacked, loaded = 10 * time.Second, 20 * time.Second, 5 * time.Second
)

// quietEnv makes the test program a quiet tenant of the kubeconfig that it names: a
// process of its own, which no attacker's goroutines keep from running.
const quietEnv = "NEIGHBOURS_QUIET"

// samples are what a quiet tenant waited for: Took for a read and a write each, Seen
// for the event of a write in a watch of its own, and Bound until a binding that it
// has written counts.
type samples struct {
	Took, Seen, Bound []time.Duration
	// Bad are answers that were refused or failed, and watches that ended, by what they say.
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

// sampler takes samples as a quiet tenant.
type sampler struct {
	*tenant

	mu sync.Mutex
	samples
	// sent is when the writes were sent whose events are yet to come.
	sent map[string]time.Time
}

// sample reads, writes, watches and binds until ctx ends.
func (u *tenant) sample(ctx context.Context) samples {
	s := &sampler{tenant: u, samples: samples{Bad: map[string]int{}}, sent: map[string]time.Time{}}
	var all sync.WaitGroup
	for _, take := range []func(context.Context){s.requests, s.events, s.bindings} {
		all.Go(func() { take(ctx) })
	}
	all.Wait()
	for _, took := range [][]time.Duration{s.Took, s.Seen, s.Bound} {
		slices.Sort(took)
	}
	return s.samples
}

// send sends a request that succeeds, or is counted as bad.
func (s *sampler) send(ctx context.Context, method, path, body string) (answer []byte) {
	code, answer, err := s.call(ctx, method, path, body)
	if err != nil || code >= http.StatusBadRequest {
		s.failed(ctx, fmt.Sprintf("%d %.200s %v", code, answer, err))
		return nil
	}
	return answer
}

// failed counts what went wrong, unless ctx has ended.
func (s *sampler) failed(ctx context.Context, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.Bad[what]++
	}
}

// requests reads and writes, one request after the other.
func (s *sampler) requests(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		s.send(ctx, http.MethodGet, configMaps, "")
		n := strconv.Itoa(i)
		s.mu.Lock()
		s.sent[n] = time.Now()
		s.mu.Unlock()
		s.send(ctx, http.MethodPut, configMaps+"/"+observed, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"n":%q}}`, observed, n))
		if ctx.Err() == nil {
			s.Took = append(s.Took, time.Since(start))
		}
	}
}

// events watches what requests writes.
func (s *sampler) events(ctx context.Context) {
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.config.Host+configMaps+"?watch=true&fieldSelector=metadata.name%3D"+observed, http.NoBody)
		if err != nil {
			s.failed(ctx, err.Error())
			return
		}
		response, err := s.http.Do(r)
		if err != nil {
			s.failed(ctx, err.Error())
			continue
		}
		s.follow(response.Body)
		_ = response.Body.Close()
		s.failed(ctx, fmt.Sprintf("the watch ended, status %d", response.StatusCode))
	}
}

// follow reads events until they end.
func (s *sampler) follow(events io.Reader) {
	for decoder := json.NewDecoder(events); ; {
		var event struct {
			Object struct{ Data struct{ N string } }
		}
		if decoder.Decode(&event) != nil {
			return
		}
		now := time.Now()
		s.mu.Lock()
		if sent, known := s.sent[event.Object.Data.N]; known {
			delete(s.sent, event.Object.Data.N)
			s.Seen = append(s.Seen, now.Sub(sent))
		}
		s.mu.Unlock()
	}
}

// bindings binds a role to somebody else again and again, and asks whether he has it.
func (s *sampler) bindings(ctx context.Context) {
	const pause = 100 * time.Millisecond
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		who := fmt.Sprintf("somebody-%d", i)
		s.send(ctx, http.MethodPut, clusterBindings+"/"+observed, administers(observed, who))
		for ctx.Err() == nil {
			if strings.Contains(string(s.send(ctx, http.MethodPost, accessReviews, accessReview(who))), `"allowed":true`) {
				s.Bound = append(s.Bound, time.Since(start))
				break
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// at returns what so many percent waited at most, of what is sorted.
func at(took []time.Duration, percent int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	return took[len(took)*percent/100].Round(10 * time.Microsecond)
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
	w.quiet.must(t, http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, observed))
	w.quiet.must(t, http.MethodPost, clusterBindings, administers(observed, "nobody"))
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
	ratio := func(took func(samples) []time.Duration) string {
		before, now := at(took(quiet), 99), at(took(during), 99)
		return fmt.Sprintf("p99 %v → %v (× %.1f, of %d and %d)", before, now, float64(now)/float64(max(before, 1)), len(took(quiet)), len(took(during)))
	}
	fmt.Printf("%-12s requests p50 %v → %v, %s | watch %s | bindings %s | %d runs, refused or failed: %v\n", name,
		at(quiet.Took, 50), at(during.Took, 50), ratio(func(s samples) []time.Duration { return s.Took }),
		ratio(func(s samples) []time.Duration { return s.Seen }), ratio(func(s samples) []time.Duration { return s.Bound }), runs, during.Bad)
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
				_, _, _ = w.attacker.call(t.Context(), http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"text":%q}}`, name, text))
				_, _, _ = w.attacker.call(t.Context(), http.MethodGet, configMaps, "")
				_, _, _ = w.attacker.call(t.Context(), http.MethodDelete, configMaps+"/"+name, "")
			}
		})
	}
	attacks.Wait()
	code, _, err := w.quiet.call(t.Context(), http.MethodGet, configMaps, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
}
