// Package snapshot saves the data of an embedded etcd to a file, and restores it, for the command line:
//
//	running server ── GET Path ──┐
//	stopped data directory ──────┴─► Save ─► file ─► Restore ─► new data directory
//
// Files have etcd's own format, the database and its SHA-256, so that etcd's tools can read them.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	progressPeriod = time.Second // of progress messages
	mebibyte       = 1 << 20
	// errorLimit limits the length of a server's error message.
	errorLimit = 4096
)

// Source is the source of a snapshot: a running server, or the data directory of a stopped one.
type Source struct {
	// Kubeconfig and Context select a shard or cache server, not a front-proxy, and an administrator.
	Kubeconfig, Context string
	// DataDir is the --data-dir of a stopped server.
	DataDir string
}

// Validate returns an error if s is incomplete.
func (s Source) Validate() error {
	switch {
	case (s.Kubeconfig == "") == (s.DataDir == ""):
		return errors.New("a source is required: --kubeconfig of a running server, or --data-dir of a stopped one")
	case s.Context != "" && s.Kubeconfig == "":
		return errors.New("--context requires --kubeconfig")
	default:
		return nil
	}
}

// Save writes a snapshot of s to file, which it replaces only if overwrite is set, and its progress to out. If it
// fails, an existing file is unchanged and no new file remains.
func Save(ctx context.Context, s Source, file string, overwrite bool, out io.Writer) (err error) {
	if err := s.Validate(); err != nil {
		return err
	}
	if _, err := os.Lstat(file); !overwrite && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists: choose another file, or use --overwrite", file)
	}
	written, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".part-*")
	if err != nil {
		return fmt.Errorf("cannot write the snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			_ = written.Close()
			_ = os.Remove(written.Name())
		}
	}()
	to := &progressWriter{Writer: written, progress: out}
	if s.DataDir != "" {
		err = saveStopped(ctx, s.DataDir, to)
	} else {
		err = saveRunning(ctx, s, to)
	}
	if err != nil {
		return err
	}
	if err := errors.Join(written.Sync(), written.Close()); err != nil {
		return fmt.Errorf("cannot write the snapshot: %w", err)
	}
	sum, err := etcd.Checksum(written.Name())
	if err == nil && sum == nil {
		err = fmt.Errorf("%w: it was truncated or damaged in transit after %d bytes: save it again", etcd.ErrSnapshot, to.written)
	}
	if err != nil {
		return err
	}
	if err := publish(written.Name(), file, overwrite); err != nil {
		return fmt.Errorf("cannot write the snapshot: %w", err)
	}
	_, _ = fmt.Fprintf(out, "Saved %d bytes to %s, sha256 %x\n", to.written, file, sum)
	return etcd.SyncDir(filepath.Dir(file))
}

// publish renames from to file. Without overwrite, it fails if file was created concurrently.
func publish(from, file string, overwrite bool) error {
	if overwrite {
		return os.Rename(from, file)
	}
	if err := os.Link(from, file); err != nil {
		return err
	}
	return os.Remove(from)
}

// saveStopped opens the data like a server, because the latest writes may only be in etcd's log.
func saveStopped(ctx context.Context, dataDir string, to *progressWriter) (err error) {
	dir := etcd.Directory(dataDir)
	if _, err := os.Stat(filepath.Join(dir, "member")); err != nil {
		return fmt.Errorf("%s has no data of an embedded etcd: use the --data-dir of the server: %w", dataDir, err)
	}
	server, err := etcd.Start(ctx, etcd.Config{DataDir: dir})
	if errors.Is(err, etcd.ErrDataDirInUse) {
		return fmt.Errorf("%w; or save from the running server with --kubeconfig", err)
	}
	if err != nil {
		return err
	}
	defer server.Stop()
	opened, err := server.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	to.size = opened.Size()
	_, err = opened.WriteTo(to)
	return err
}

func saveRunning(ctx context.Context, s Source, to *progressWriter) error {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: s.Kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: s.Context},
	).ClientConfig()
	if err != nil {
		return fmt.Errorf("--kubeconfig %s: %w", s.Kubeconfig, err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("--kubeconfig %s: %w", s.Kubeconfig, err)
	}
	defer client.CloseIdleConnections()
	client.Timeout = 0
	from, err := serverURL(config.Host)
	if err != nil {
		return fmt.Errorf("--kubeconfig %s: %w", s.Kubeconfig, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("cannot reach the server: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, errorLimit)) // optional
		return fmt.Errorf("%s returned %s: --kubeconfig and --context must select a shard or a cache server, not a front-proxy, and a member of system:masters: %s",
			from, response.Status, strings.TrimSpace(string(reason)))
	}
	to.size = response.ContentLength
	if _, err := io.Copy(to, response.Body); err != nil {
		return fmt.Errorf("the snapshot was truncated after %d of %d bytes: %w", to.written, response.ContentLength, err)
	}
	return nil
}

func serverURL(host string) (string, error) {
	u, err := url.Parse(host)
	if err != nil {
		return "", err
	}
	if u.Scheme == "" || u.Host == "" {
		return "", fmt.Errorf("the server %q is not of the form https://host:port", host)
	}
	for _, scope := range []string{request.Clusters.Prefix, request.ServicesPrefix, request.Shards.Prefix} {
		u.Path, _, _ = strings.Cut(u.Path+"/", scope)
	}
	return u.Scheme + "://" + u.Host + strings.TrimRight(u.Path, "/") + Path, nil
}

// progressWriter prints the progress of a snapshot.
type progressWriter struct {
	io.Writer
	progress      io.Writer
	written, size int64
	reported      time.Time
}

func (w *progressWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.written += int64(n)
	if now := time.Now(); now.Sub(w.reported) >= progressPeriod {
		w.reported = now
		_, _ = fmt.Fprintf(w.progress, "%d of %d MiB\n", w.written/mebibyte, w.size/mebibyte)
	}
	return n, err
}

// Path is the path of snapshots on servers with an embedded etcd.
const Path = "/etcd/snapshot"
