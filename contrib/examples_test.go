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

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// testTimeout is how long tests wait for what takes seconds on an idle machine.
const testTimeout = 2 * time.Minute

// leaseDuration is how long replicas of tests wait for one that has crashed: the default where
// it is measured. A fifth of it is what work may take to end.
func leaseDuration() time.Duration {
	if os.Getenv(workspacesEnv) != "" {
		return 15 * time.Second
	}
	return 10 * time.Second
}

// programsIn is where the examples are, which programs builds once.
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
	said    *bytes.Buffer
	ended   chan struct{}
}

// start starts a replica of an example, which ends with the test.
func start(t *testing.T, program, name string, args ...string) *replica {
	t.Helper()
	require.NoError(t, programs())
	address := fmt.Sprint("127.0.0.1:", harness.FreePort(t))
	r := &replica{t: t, name: name, url: "http://" + address, said: &bytes.Buffer{}, ended: make(chan struct{})}
	r.command = exec.Command(filepath.Join(programsIn, program), append([]string{"--listen=" + address, "--id=" + name, "--lease-duration=" + leaseDuration().String()}, args...)...)
	r.command.Stdout, r.command.Stderr = r.said, r.said
	require.NoError(t, r.command.Start())
	go func() {
		defer close(r.ended)
		_ = r.command.Wait() // how it ended is in its state
	}()
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("%s of %s said:\n%s", name, program, r.said)
		}
	})
	return r
}

// kill ends it as kill -9 does.
func (r *replica) kill() {
	_ = r.command.Process.Kill() // it may have ended
	<-r.ended
}

// stop ends it as a rolling update does.
func (r *replica) stop() {
	r.t.Helper()
	require.NoError(r.t, r.command.Process.Signal(os.Interrupt))
	select {
	case <-r.ended:
	case <-time.After(testTimeout):
		require.Fail(r.t, "it does not end", "%s", r.name)
	}
	require.Zero(r.t, r.command.ProcessState.ExitCode(), "%s", r.name)
}

// get returns what it answers, with an error unless that is 200.
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

// metrics returns its metrics by job.
func (r *replica) metrics(job string) (Served, error) {
	text, err := r.get("/metrics")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	served := Served{}
	return served, served.Add(job, bytes.NewBufferString(text))
}

// divided waits until the replicas, and no others, have equal parts, but for a slot or two of 256.
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
				return fmt.Errorf("%s has %.3f of all", r.name, share)
			}
		}
		page, err := replicas[0].get("/debug/ring")
		if err == nil && !strings.Contains(page, replicas[0].name+"-") {
			err = fmt.Errorf("it is not on its page:\n%s", page)
		}
		return err
	})
}

// eventually waits until what returns nil, and fails with its last error.
func eventually(t *testing.T, what string, tried func() error) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		err := tried()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err, what)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func factoryOf(t *testing.T, config *rest.Config) *client.Factory {
	t.Helper()
	f, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(f.CloseIdleConnections)
	return f
}

// workspace makes a workspace of root on a shard, and returns its logical cluster when it is Ready.
func workspace(t *testing.T, proxy *client.Factory, name, shard string) logicalcluster.Name {
	t.Helper()
	in := kinds.Workspaces.In(proxy.Cluster(logicalcluster.NewPath("root")))
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}}}
	eventually(t, "the workspace "+name+" is Ready", func() error {
		_, err := in.Create(t.Context(), ws, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		found, err := in.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && found.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
			return fmt.Errorf("it is %q", found.Status.Phase)
		}
		ws = found
		return err
	})
	return logicalcluster.Name(ws.Spec.Cluster)
}

// dashboardIsServed holds the dashboard of an example against what its replicas serve.
func dashboardIsServed(t *testing.T, example string, replicas ...*replica) {
	t.Helper()
	file := filepath.Join("examples", example, "dashboard.json")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
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
		require.NoError(t, err, "%s: %s", file, uses[i].Place)
	}
	require.Empty(t, served.Missing(uses), file)
}
