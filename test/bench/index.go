package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/bench/measure"
	"github.com/shardplane/shardplane/test/bench/process"
	"github.com/shardplane/shardplane/test/bench/shardsim"
)

// newIndex measures what a front-proxy takes that follows many shards.
func newIndex() *workload {
	o := indexRun{}
	cmd := &cobra.Command{Use: "index", Short: "Start a front-proxy before simulated shards with many workspaces, and measure its memory, starts, and when it sees new ones"}
	fs := cmd.Flags()
	fs.StringVar(&o.binary, "binary", "bin/shardplane", "the shardplane program whose front-proxy is started; make build builds it")
	fs.IntVar(&o.shards, "shards", 50, "simulated shards")
	fs.IntVar(&o.workspaces, "workspaces", 1000000, "workspaces on them")
	fs.IntVar(&o.news, "new", 500, "workspaces that are made while it is measured when they are seen")
	fs.DurationVar(&o.timeout, "timeout", 30*time.Minute, "give up after this time")
	fs.BoolVar(&o.former, "former", false, "measure a front-proxy that does not know --index-directory")
	return &workload{Command: cmd, run: func(ctx context.Context, report *measure.Report) error {
		ctx, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		return o.measure(ctx, report)
	}}
}

type indexRun struct {
	binary                   string
	shards, workspaces, news int
	timeout                  time.Duration
	former                   bool

	dir    string
	sim    *shardsim.Shards
	url    string
	client *http.Client
	flags  []string
	out    *os.File
}

func (o *indexRun) measure(ctx context.Context, report *measure.Report) (err error) {
	if o.dir, err = os.MkdirTemp("", "shardplane-bench-index"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	if o.out, err = os.Create(filepath.Join(o.dir, "front-proxy.log")); err != nil {
		return err
	}
	defer func() { _ = o.out.Close() }()
	stop, err := o.prepare(ctx)
	if err != nil {
		return err
	}
	defer stop()
	progress("starting a front-proxy that has to read all of %d workspaces on %d shards", o.workspaces, o.shards)
	proxy, err := o.start(ctx, "start, all is read", report)
	if err != nil {
		return err
	}
	running := true
	defer func() {
		if running {
			err = errors.Join(err, proxy.Stop(time.Minute))
		}
	}()
	if err := o.recent(ctx, report); err != nil {
		return err
	}
	if err := o.memory(proxy, report, "after the first start"); err != nil {
		return err
	}
	if o.former {
		return nil
	}
	progress("stopping it, and starting it again")
	running = false
	began := time.Now()
	if err := proxy.Stop(time.Minute); err != nil {
		return err
	}
	report.Add(measure.Result{Name: "stop, with files", Target: "front-proxy", Value: time.Since(began).Seconds(), Unit: "s"})
	read := o.sim.Initial()
	if proxy, err = o.start(ctx, "restart", report); err != nil {
		return err
	}
	running = true
	if err := o.recent(ctx, report); err != nil {
		return err
	}
	report.Results[len(report.Results)-1].Note = fmt.Sprintf("after the restart, for which %d of %d kinds of shards were read anew", max(0, o.sim.Initial()-read-1-2*o.shards), 2*o.shards)
	return o.memory(proxy, report, "after the restart")
}

// prepare makes certificates, serves the shards, and sets how the front-proxy is started.
func (o *indexRun) prepare(ctx context.Context) (stop func(), err error) {
	store := pki.NewStore(o.dir, time.Now)
	ca, err := store.Authority("ca")
	if err != nil {
		return nil, err
	}
	local := pki.Spec{CommonName: "localhost", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}
	pairs := map[string]*pki.Pair{}
	for name, spec := range map[string]pki.Spec{"serving": local, "admin": pki.Client("admin", "system:masters")} {
		if pairs[name], err = store.Certificate(name, ca, spec); err != nil {
			return nil, err
		}
	}
	serving, admin := pairs["serving"], pairs["admin"]
	certificate, err := tls.LoadX509KeyPair(serving.CertFile, serving.KeyFile)
	if err != nil {
		return nil, err
	}
	own, err := tls.LoadX509KeyPair(admin.CertFile, admin.KeyFile)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	free, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	port := free.Addr().(*net.TCPAddr).Port
	o.sim = shardsim.New(o.shards, o.workspaces)
	o.sim.URL, o.url = "https://"+listener.Addr().String(), "https://127.0.0.1:"+strconv.Itoa(port)
	server := &http.Server{Handler: o.sim, TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.ServeTLS(listener, "", "") }() // until it is closed

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM)
	o.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}}
	kubeconfig := filepath.Join(o.dir, "root.kubeconfig")
	content := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"x","cluster":{"server":%q,"certificate-authority":%q}}],`+
		`"users":[{"name":"x","user":{"client-certificate":%q,"client-key":%q}}],"contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}]}`, o.sim.URL, ca.CertFile, admin.CertFile, admin.KeyFile)
	o.flags = []string{
		"front-proxy", "--root-kubeconfig", kubeconfig, "--shard-ca-file", ca.CertFile, "--client-ca-file", ca.CertFile,
		"--shard-client-cert-file", admin.CertFile, "--shard-client-key-file", admin.KeyFile, "--proxy-client-cert-file", admin.CertFile, "--proxy-client-key-file", admin.KeyFile,
		"--tls-cert-file", serving.CertFile, "--tls-private-key-file", serving.KeyFile, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port), "--index-timeout", "10s",
	}
	if !o.former {
		o.flags = append(o.flags, "--index-directory", filepath.Join(o.dir, "index"))
	}
	return func() { _ = server.Close() }, errors.Join(os.WriteFile(kubeconfig, []byte(content), 0o600), free.Close())
}

// start starts the front-proxy, and reports how long it took until it served all workspaces.
func (o *indexRun) start(ctx context.Context, name string, report *measure.Report) (*process.Process, error) {
	began := time.Now()
	proxy, err := process.Start(ctx, o.out, o.binary, o.flags...)
	if err != nil {
		return nil, err
	}
	// The last of each shard: they come in order.
	for number := o.workspaces - o.shards; number < o.workspaces; number++ {
		for o.get(ctx, o.sim.Path(number)) != nil {
			select {
			case <-ctx.Done():
				log, _ := os.ReadFile(o.out.Name())
				return nil, errors.Join(fmt.Errorf("waiting for %s: %w\n%s", o.sim.Path(number), ctx.Err(), log[max(0, len(log)-2000):]), proxy.Stop(time.Minute))
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	report.Add(measure.Result{Name: name, Target: "front-proxy", Value: time.Since(began).Seconds(), Unit: "s", Note: "until a request for the last workspace of each shard was answered"})
	return proxy, nil
}

// get asks for something of a workspace.
func (o *indexRun) get(ctx context.Context, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url+"/clusters/"+path+"/version", http.NoBody)
	if err != nil {
		return err
	}
	res, err := o.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, res.Status)
	}
	return nil
}

// recent measures how long after its making a workspace is served, while others are asked for.
func (o *indexRun) recent(ctx context.Context, report *measure.Report) error {
	seen, old := &measure.Recorder{}, &measure.Recorder{}
	for range o.news {
		path := o.sim.Path(o.sim.Make())
		if err := seen.Time(func() error { return o.get(ctx, path) }); err != nil {
			return err
		}
		if err := old.Time(func() error { return o.get(ctx, o.sim.Path(rand.IntN(o.workspaces))) }); err != nil {
			return err
		}
	}
	report.Add(old.Median("a request for any workspace", "front-proxy"), seen.Median("a request for a workspace just made", "front-proxy"))
	return nil
}

func (o *indexRun) memory(proxy *process.Process, report *measure.Report, when string) error {
	tree, err := process.Tree(proxy.PID())
	if err != nil {
		return err
	}
	report.Add(measure.Result{Name: "resident, " + when, Target: "front-proxy", Value: mebibytes(tree[0].Resident), Unit: "MiB", Note: fmt.Sprintf("anonymous %.0f MiB", mebibytes(tree[0].Anonymous))})
	return nil
}
