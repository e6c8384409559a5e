package contrib_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

// testTimeout limits waiting for conditions that become true in seconds on an idle machine.
const testTimeout = 2 * time.Minute

// leaseDuration is the time after which a crashed replica is replaced. Measurements use the default.
func leaseDuration() time.Duration {
	if os.Getenv(workspacesEnv) != "" {
		return 15 * time.Second
	}
	return 10 * time.Second
}

// programsIn is the directory with the examples, which are built once by programs.
var (
	programsIn string
	programs   = sync.OnceValue(func() error {
		var err error
		if programsIn, err = os.MkdirTemp("", "shardplane-test"); err != nil {
			return err
		}
		out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", programsIn, "./examples/...").CombinedOutput()
		if err != nil {
			return fmt.Errorf("building the examples: %w\n%s", err, out)
		}
		return nil
	})
)

// replica is a process of an example.
type replica struct {
	t       *testing.T
	name    string
	url     string
	command *exec.Cmd
	output  *bytes.Buffer
	ended   chan struct{}
}

// start starts a replica of an example, which is killed when the test ends.
func start(t *testing.T, program, name string, args ...string) *replica {
	t.Helper()
	require.NoError(t, programs())
	address := fmt.Sprint("127.0.0.1:", harness.FreePort(t))
	r := &replica{t: t, name: name, url: "http://" + address, output: &bytes.Buffer{}, ended: make(chan struct{})}
	r.command = exec.Command(filepath.Join(programsIn, program), append([]string{"--listen=" + address, "--id=" + name, "--lease-duration=" + leaseDuration().String()}, args...)...)
	r.command.Stdout, r.command.Stderr = r.output, r.output
	require.NoError(t, r.command.Start())
	go func() {
		defer close(r.ended)
		_ = r.command.Wait() // the error is also in ProcessState
	}()
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("Output of %s of %s:\n%s", name, program, r.output)
		}
	})
	return r
}

// kill kills the replica.
func (r *replica) kill() {
	_ = r.command.Process.Kill() // it may have ended
	<-r.ended
}

// stop interrupts the replica, like a rolling update, and waits until it has ended.
func (r *replica) stop() {
	r.t.Helper()
	require.NoError(r.t, r.command.Process.Signal(os.Interrupt))
	select {
	case <-r.ended:
	case <-time.After(testTimeout):
		require.Fail(r.t, "the replica has not ended", "%s", r.name)
	}
	require.Zero(r.t, r.command.ProcessState.ExitCode(), "%s", r.name)
}

// get returns the body of a response, and an error if its code is not 200.
func (r *replica) get(path string) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, &body)
	}
	return body.String(), err
}

// metrics returns the metrics of the replica by job.
func (r *replica) metrics(job string) (Served, error) {
	text, err := r.get("/metrics")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	served := Served{}
	return served, served.Add(job, bytes.NewBufferString(text))
}

// divided waits until these replicas are the only members of the ring and have equal shares. They may differ by two slots of 256.
func divided(t *testing.T, what string, replicas ...*replica) {
	t.Helper()
	eventually(t, what, func() error {
		for _, r := range replicas {
			served, err := r.metrics("")
			if err != nil {
				return err
			}
			share := 0.0
			for _, family := range served[""] {
				if family.GetName() == "shardplane_ring_share" {
					share = family.GetMetric()[0].GetGauge().GetValue()
				}
			}
			if math.Abs(share-1/float64(len(replicas))) > 2.5/256 {
				return fmt.Errorf("%s has a share of %.3f", r.name, share)
			}
		}
		page, err := replicas[0].get("/debug/ring")
		if err == nil && !strings.Contains(page, replicas[0].name+"-") {
			err = fmt.Errorf("the page does not contain the replica:\n%s", page)
		}
		return err
	})
}

// eventually waits until try returns nil, and otherwise fails with its last error.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err, "timeout, expected: "+what)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// dashboardIsServed checks that the replicas serve all metrics in the dashboard of an example.
func dashboardIsServed(t *testing.T, example string, replicas ...*replica) {
	t.Helper()
	file := filepath.Join("examples", example, "dashboard.json")
	content := harness.ReadFile(t, file)
	uses, err := dashboardExprs(content)
	require.NoError(t, err)
	require.NotEmpty(t, uses)
	served := Served{}
	for _, r := range replicas {
		text, err := r.get("/metrics")
		require.NoError(t, err)
		require.NoError(t, served.Add(example, bytes.NewBufferString(text)))
	}
	for i := range uses {
		uses[i].Query, err = ParseQuery(uses[i].Expr)
		require.NoError(t, err, "%s: %s", file, uses[i].Location)
	}
	require.Empty(t, served.Missing(uses), file)
}
