package noisyneighbors

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

var latencyFlag = flag.Bool("latency", false, "measure the latency of the quiet tenant before and during each row")

const (
	configMaps      = "/api/v1/namespaces/default/configmaps"
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	// observedName is the name of the ConfigMap and the binding that the quiet tenant writes during
	// measurements.
	observedName = "latency"
	// quietTime is the duration of the measurement before a row, attackTime the minimum duration
	// during it, and loadTime the duration of load.
	quietTime, attackTime, loadTime = 10 * time.Second, 20 * time.Second, 5 * time.Second
)

// quietEnv is a kubeconfig. If set, the test program runs as the quiet tenant, because the
// attacker's goroutines would delay it in the same process.
const quietEnv = "NOISY_NEIGHBORS_QUIET"

// samples are latencies of a quiet tenant: Took of a read and a write, Seen until a watch receives
// the event of a write, and Bound until a binding is effective.
type samples struct {
	Took, Seen, Bound []time.Duration
	// Bad counts errors and ended watches by message.
	Bad map[string]int
}

// runQuietTenant samples between odd and even lines of standard input, and prints the samples after
// each even line.
func runQuietTenant(kubeconfig string) error {
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

// sampler takes samples as the quiet tenant.
type sampler struct {
	*tenant

	mu sync.Mutex
	samples
	// sent contains the times of writes without a received event.
	sent map[string]time.Time
}

// sample reads, writes, watches and binds until ctx is done.
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

// send sends a request, and records an error if it fails.
func (s *sampler) send(ctx context.Context, method, path, body string) (response []byte) {
	code, response, err := s.call(ctx, method, path, body)
	if err != nil || code >= http.StatusBadRequest {
		s.recordError(ctx, fmt.Sprintf("%d %.200s %v", code, response, err))
		return nil
	}
	return response
}

// recordError counts an error unless ctx is done.
func (s *sampler) recordError(ctx context.Context, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.Bad[what]++
	}
}

// requests reads and writes sequentially.
func (s *sampler) requests(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		s.send(ctx, http.MethodGet, configMaps, "")
		n := strconv.Itoa(i)
		s.mu.Lock()
		s.sent[n] = time.Now()
		s.mu.Unlock()
		s.send(ctx, http.MethodPut, configMaps+"/"+observedName, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"n":%q}}`, observedName, n))
		if ctx.Err() == nil {
			s.Took = append(s.Took, time.Since(start))
		}
	}
}

// events watches the writes of requests.
func (s *sampler) events(ctx context.Context) {
	for ctx.Err() == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.config.Host+configMaps+"?watch=true&fieldSelector=metadata.name%3D"+observedName, http.NoBody)
		if err != nil {
			s.recordError(ctx, err.Error())
			return
		}
		response, err := s.http.Do(r)
		if err != nil {
			s.recordError(ctx, err.Error())
			continue
		}
		s.follow(response.Body)
		_ = response.Body.Close()
		s.recordError(ctx, fmt.Sprintf("the watch ended, status %d", response.StatusCode))
	}
}

// follow reads events until the stream ends.
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
		if sent, ok := s.sent[event.Object.Data.N]; ok {
			delete(s.sent, event.Object.Data.N)
			s.Seen = append(s.Seen, now.Sub(sent))
		}
		s.mu.Unlock()
	}
}

// bindings repeatedly binds a role to another user, and sends access reviews until the binding is
// effective.
func (s *sampler) bindings(ctx context.Context) {
	const pause = 100 * time.Millisecond
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		user := fmt.Sprintf("user-%d", i)
		s.send(ctx, http.MethodPut, clusterBindings+"/"+observedName, adminBinding(observedName, user))
		for ctx.Err() == nil {
			if strings.Contains(string(s.send(ctx, http.MethodPost, accessReviews, accessReview(user))), `"allowed":true`) {
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

// at returns a percentile of sorted durations.
func at(took []time.Duration, percent int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	return took[len(took)*percent/100].Round(10 * time.Microsecond)
}

// observer is the quiet tenant in a separate process.
type observer struct {
	in  io.Writer
	out *json.Decoder
}

// observe starts the quiet tenant, and lowers the priority of this process, because clients of an
// attacker run on other machines.
func (w *world) observe(t *testing.T) {
	t.Helper()
	if !*latencyFlag {
		return
	}
	w.quiet.must(t, http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, observedName))
	w.quiet.must(t, http.MethodPost, clusterBindings, adminBinding(observedName, "no-user"))
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
	threads, err := os.ReadDir("/proc/self/task") // each has its own priority
	require.NoError(t, err)
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		require.NoError(t, err)
		const nice = 15
		require.NoError(t, syscall.Setpriority(syscall.PRIO_PROCESS, id, nice))
	}
}

// begin starts sampling; end stops it and returns the samples.
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

// measured runs a row. With -latency, it repeats the row for a while, and prints the latencies of
// the quiet tenant before and during it.
func (w *world) measured(t *testing.T, name string, row func(*testing.T, *world)) {
	if !*latencyFlag {
		row(t, w)
		return
	}
	end := w.observer.begin(t)
	time.Sleep(quietTime) //nolint:forbidigo // the duration of a measurement
	quiet := end()
	end = w.observer.begin(t)
	runs := 0
	for start := time.Now(); time.Since(start) < attackTime && !t.Failed(); runs++ {
		w.id = newID()
		t.Run(strconv.Itoa(runs), func(t *testing.T) { row(t, w) })
	}
	during := end()
	ratio := func(took func(samples) []time.Duration) string {
		before, now := at(took(quiet), 99), at(took(during), 99)
		return fmt.Sprintf("p99 %v → %v (× %.1f, of %d and %d)", before, now, float64(now)/float64(max(before, 1)), len(took(quiet)), len(took(during)))
	}
	fmt.Printf("%-12s requests p50 %v → %v, %s | watch %s | bindings %s | %d runs, errors: %v\n", name,
		at(quiet.Took, 50), at(during.Took, 50), ratio(func(s samples) []time.Duration { return s.Took }),
		ratio(func(s samples) []time.Duration { return s.Seen }), ratio(func(s samples) []time.Duration { return s.Bound }), runs, during.Bad)
}

// busy keeps all cores busy without requests. It shows the effect of the attacker's own
// computation.
func busy(t *testing.T, _ *world) {
	if !*latencyFlag {
		t.Skip("only for comparison with -latency")
	}
	ctx, stop := context.WithTimeout(t.Context(), loadTime)
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

// load writes, reads and deletes continuously with 16 clients.
func load(t *testing.T, w *world) {
	ctx, stop := context.WithTimeout(t.Context(), loadTime)
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
