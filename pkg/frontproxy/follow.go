package frontproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// follower updates the index from one shard at one address. The index entries are kept while the shard
// is unreachable. Workspaces and LogicalClusters are not stored as objects.
type follower struct {
	shard          string
	workspaces     *client.Follower[*tenancyv1alpha1.Workspace]
	clusters       *client.Follower[*corev1alpha1.LogicalCluster]
	types          *client.Informer[*tenancyv1alpha1.WorkspaceType]
	configurations *client.Informer[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]
	seen           *dataEpochs
	host           string
	began          time.Time
}

func newFollower(peer *peers.Peer, index *workspaceindex.Index, seen *dataEpochs) *follower {
	_, host, _ := strings.Cut(peer.URL, "://")
	host, _, _ = strings.Cut(host, "/")
	index.UpsertShard(peer.Name, peer.URL)
	return &follower{
		shard: peer.Name, seen: seen, host: host, began: time.Now(),
		workspaces: kinds.Workspaces.Follower(peer.Clients.Wildcard(), "workspaces of shard "+peer.Name, sink[*tenancyv1alpha1.Workspace]{
			index: index, shard: peer.Name, kind: workspaceindex.Workspaces,
			put: func(obj *tenancyv1alpha1.Workspace) {
				index.UpsertWorkspace(peer.Name, workspaceindex.WorkspaceOf(obj))
			},
			delete: func(last *tenancyv1alpha1.Workspace) {
				index.DeleteWorkspace(peer.Name, logicalcluster.From(last), last.Name)
			},
		}),
		clusters: kinds.LogicalClusters.Follower(peer.Clients.Wildcard(), "logicalclusters of shard "+peer.Name, sink[*corev1alpha1.LogicalCluster]{
			index: index, shard: peer.Name, kind: workspaceindex.LogicalClusters,
			put: func(obj *corev1alpha1.LogicalCluster) {
				index.UpsertLogicalCluster(peer.Name, workspaceindex.LogicalClusterOf(obj))
			},
			delete: func(last *corev1alpha1.LogicalCluster) {
				index.DeleteLogicalCluster(peer.Name, logicalcluster.From(last))
			},
		}),
		types: kinds.WorkspaceTypes.Informer(peer.Clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceType]{
			Name: "workspacetypes of shard " + peer.Name, Transform: slimType,
		}),
		configurations: kinds.WorkspaceAuthenticationConfigurations.Informer(peer.Clients.Wildcard(), client.InformerOptions[*tenancyv1alpha1.WorkspaceAuthenticationConfiguration]{
			Name: "workspaceauthenticationconfigurations of shard " + peer.Name,
		}),
	}
}

// run follows the shard until ctx is done. A follower of the same shard at another address must have ended before.
func (f *follower) run(ctx context.Context) {
	group := &client.Group{}
	group.Add(f.workspaces, f.clusters, f.types, f.configurations)
	if err := group.Run(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to follow shard", "shard", f.shard)
		<-ctx.Done()
	}
}

func (f *follower) synced() bool { return f.workspaces.HasSynced() && f.clusters.HasSynced() }

func (f *follower) current() bool { return f.workspaces.Current() && f.clusters.Current() }

func (f *follower) unreachableSince() (at time.Time) {
	for _, since := range []func() (time.Time, error){f.workspaces.Unreachable, f.clusters.Unreachable} {
		if broke, why := since(); why != nil {
			at = later(at, broke)
		}
	}
	return at
}

// revisions returns the revisions of the index. They are incomplete while the shard is being listed.
func (f *follower) revisions() (to workspaceindex.Revisions) {
	clusters, workspaces := &to[workspaceindex.LogicalClusters], &to[workspaceindex.Workspaces]
	// The epochs are read first: if one changes meanwhile, the shard rejects the revision instead of mistaking it for one
	// of the new epoch.
	clusters.Data = f.seen.get(followedResource{f.host, kinds.LogicalClusters.Resource})
	workspaces.Data = f.seen.get(followedResource{f.host, kinds.Workspaces.Resource})
	clusters.Version, workspaces.Version = f.clusters.ResourceVersion(), f.workspaces.ResourceVersion()
	return to
}

func (f *follower) resume(at workspaceindex.Revisions) {
	if !at.Complete() {
		return
	}
	clusters, workspaces := at[workspaceindex.LogicalClusters], at[workspaceindex.Workspaces]
	f.seen.set(followedResource{f.host, kinds.LogicalClusters.Resource}, clusters.Data)
	f.seen.set(followedResource{f.host, kinds.Workspaces.Resource}, workspaces.Data)
	f.clusters.Resume(clusters.Version)
	f.workspaces.Resume(workspaces.Version)
}

func (f *follower) failure() error {
	if err := f.workspaces.LastError(); err != nil {
		return err
	}
	return f.clusters.LastError()
}

type sink[T any] struct {
	index       *workspaceindex.Index
	shard       string
	kind        workspaceindex.Kind
	put, delete func(T)
}

func (s sink[T]) Begin()        { s.index.Begin(s.shard, s.kind) }
func (s sink[T]) End()          { s.index.Sweep(s.shard, s.kind) }
func (s sink[T]) Put(obj T)     { s.put(obj) }
func (s sink[T]) Delete(last T) { s.delete(last) }

// slimType keeps only the references to authentication configurations.
func slimType(obj *tenancyv1alpha1.WorkspaceType) (*tenancyv1alpha1.WorkspaceType, error) {
	slim := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
		Annotations: map[string]string{logicalcluster.AnnotationKey: logicalcluster.From(obj).String()},
	}}
	slim.Spec.AuthenticationConfigurations = obj.Spec.AuthenticationConfigurations
	return slim, nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// dataEpochs stores the data epoch of each followed resource and sends it to shards. A shard that was restored from
// an older backup rejects requests with another epoch, even if its revisions have become as high as before.
type dataEpochs struct{ all sync.Map }

type followedResource struct{ host, resource string }

func (d *dataEpochs) get(f followedResource) string {
	data, _ := d.all.Load(f)
	epoch, _ := data.(string)
	return epoch
}

func (d *dataEpochs) set(f followedResource, data string) { d.all.Store(f, data) }

// wrap returns a transport that sends the stored epochs, and stores those of responses.
func (d *dataEpochs) wrap(next http.RoundTripper) http.RoundTripper { return &dataTransport{d, next} }

type dataTransport struct {
	seen *dataEpochs
	http.RoundTripper
}

// WrappedRoundTripper allows idle connections to be closed.
func (t *dataTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

func (t *dataTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	f, ok := followedBy(r.URL)
	if !ok {
		return t.RoundTripper.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	r.Header[request.DataHeader] = []string{t.seen.get(f)}
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusOK {
		t.seen.set(f, response.Header.Get(request.DataHeader))
	}
	return response, err
}

// followedBy returns the resource that a request follows: one of all logical clusters, or the Shards in root.
func followedBy(u *url.URL) (followedResource, bool) {
	resource, _, _ := strings.Cut(path.Base(u.Path), ":")
	return followedResource{u.Host, resource}, strings.HasPrefix(u.Path, request.Clusters.Prefix+request.Wildcard+"/") || resource == kinds.Shards.Resource
}

const (
	saveInterval = time.Minute
	// savedSuffix is the suffix of snapshot files. Names of files that are being written contain writingInfix.
	savedSuffix  = ".index"
	writingInfix = ".index.new-"
)

var errOtherShard = errors.New("the snapshot is of another shard")

// saver saves the Shard object and index entries of each shard in a file for the next process, if it has a directory.
type saver struct {
	directory string
	index     *workspaceindex.Index

	mu    sync.Mutex
	files map[string]*savedShard
}

type savedShard struct {
	object json.RawMessage // the Shard object
	url    string          // its address
	// from are the revisions of the file that existed at the start, for the first follower.
	from     workspaceindex.Revisions
	follower *follower // nil before the shard is followed
	// file and to are those that this process has written, with the index at changes and revisions.
	file      *os.File
	to        *workspaceindex.SnapshotWriter
	changes   uint64
	revisions workspaceindex.Revisions
}

func newSaver(directory string, index *workspaceindex.Index) (*saver, error) {
	s := &saver{directory: directory, index: index, files: map[string]*savedShard{}}
	if directory == "" {
		return s, nil
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, fmt.Errorf("--index-directory: %w", err)
	}
	probe, err := os.CreateTemp(directory, "probe"+writingInfix)
	if err != nil {
		return nil, fmt.Errorf("--index-directory is not writable: %w", err)
	}
	return s, errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// restore reads the files into the index, and returns the Shard objects. Unreadable files are ignored.
func (s *saver) restore(ctx context.Context) []json.RawMessage {
	if s.directory == "" {
		return nil
	}
	logger, start := klog.FromContext(ctx), time.Now()
	paths, err := filepath.Glob(filepath.Join(s.directory, "*"))
	if err != nil {
		logger.Error(err, "Failed to list index snapshots", "directory", s.directory)
	}
	var reading errgroup.Group
	reading.SetLimit(runtime.GOMAXPROCS(0))
	for _, path := range paths {
		base := filepath.Base(path)
		if strings.Contains(base, writingInfix) {
			_ = os.Remove(path) // from a process that was killed
			continue
		}
		if name, ok := strings.CutSuffix(base, savedSuffix); ok {
			reading.Go(func() error {
				if err := s.read(path, name); err != nil {
					logger.Error(err, "Failed to read index snapshot, listing the shard instead", "shard", name, "file", path)
					s.index.DeleteShard(name) // entries before the damage, or of another shard
				}
				return nil
			})
		}
	}
	_ = reading.Wait() // they return no errors
	s.mu.Lock()
	defer s.mu.Unlock()
	objects := make([]json.RawMessage, 0, len(s.files))
	for _, file := range s.files {
		objects = append(objects, file.object)
	}
	if stats := s.index.Stats(); len(objects) > 0 {
		logger.Info("Restored index snapshots", "shards", len(objects), "logicalClusters", stats.LogicalClusters, "workspaces", stats.Workspaces, "took", time.Since(start))
	}
	return objects
}

func (s *saver) read(path, name string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	read, err := s.index.ReadSnapshot(name, file)
	if err != nil {
		return err
	}
	var shard corev1alpha1.Shard
	if err := json.Unmarshal(read.Origin, &shard); err != nil {
		return fmt.Errorf("decoding the Shard object: %w", err)
	}
	if shard.Name != name {
		return fmt.Errorf("%w: %q", errOtherShard, shard.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = &savedShard{object: read.Origin, url: shard.Spec.BaseURL, from: read.Revisions}
	return nil
}

// follows registers a follower for saves, and resumes at the file's revisions if the address has not changed.
func (s *saver) follows(f *follower, url string) {
	if s.directory == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	saved := s.files[f.shard]
	if saved == nil {
		saved = &savedShard{}
		s.files[f.shard] = saved
	}
	if strings.TrimSuffix(saved.url, "/") == url {
		f.resume(saved.from)
	} else {
		// The file contains another address, so the next process could not resume from it either.
		saved.from, saved.revisions = workspaceindex.Revisions{}, workspaceindex.Revisions{}
	}
	saved.follower, saved.url = f, ""
}

func (s *saver) remove(ctx context.Context, shard string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if saved := s.files[shard]; saved != nil {
		saved.close()
		delete(s.files, shard)
		if err := os.Remove(s.path(shard)); err != nil && !errors.Is(err, os.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Failed to remove the index snapshot of a removed shard", "shard", shard)
		}
	}
}

func (s *saver) path(shard string) string { return filepath.Join(s.directory, shard+savedSuffix) }

// resumable reports whether the file contains resourceVersions from which the watches of the next process can resume.
func (f *savedShard) resumable() bool { return f.from.Complete() || f.revisions.Complete() }

func (f *savedShard) close() {
	_ = f.file.Close() // if there is one
	f.to = nil
}

// save writes the files of shards that have changed, and updates the revisions in all others. A shard that is being
// listed and has no resumable file is saved with incomplete revisions, because the file also contains its Shard
// object. Without that object, the shard cannot be followed if root is unreachable at the next start. objectOf
// returns a Shard object.
func (s *saver) save(ctx context.Context, objectOf func(shard string) *corev1alpha1.Shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	logger := klog.FromContext(ctx)
	begun := map[string]*savedShard{}
	writers := map[string]*workspaceindex.SnapshotWriter{}
	for name, saved := range s.files {
		object := objectOf(name)
		if object == nil || saved.follower == nil {
			continue // keep the previous file
		}
		// The order matters: changes up to the revisions must be counted.
		next := &savedShard{revisions: saved.follower.revisions()}
		next.changes = s.index.Changes(name)
		if (!saved.follower.current() || !next.revisions.Complete()) && saved.resumable() {
			continue // the shard is being listed: keep the previous file
		}
		if err := s.begin(saved, next, object); err != nil {
			logger.Error(err, "Failed to save index snapshot", "shard", name)
		}
		if next.to != nil {
			begun[name], writers[name] = next, next.to
		}
	}
	if len(begun) == 0 {
		return
	}
	s.index.WriteSnapshots(writers)
	for name, next := range begun {
		if err := s.end(s.files[name], next, name); err != nil {
			logger.Error(err, "Failed to save index snapshot", "shard", name)
		}
	}
}

func (s *saver) begin(saved, next *savedShard, object *corev1alpha1.Shard) error {
	var err error
	if next.object, err = json.Marshal(object); err != nil {
		return fmt.Errorf("encoding the Shard object: %w", err)
	}
	if saved.to != nil && saved.changes == next.changes && string(saved.object) == string(next.object) {
		if saved.revisions == next.revisions {
			return nil
		}
		if err := saved.to.End(next.revisions); err != nil {
			saved.close() // rewritten next time
			return err
		}
		saved.revisions = next.revisions
		return nil
	}
	if next.file, err = os.CreateTemp(s.directory, object.Name+writingInfix); err != nil {
		return err
	}
	next.to = workspaceindex.NewSnapshotWriter(next.file, next.object)
	return nil
}

func (s *saver) end(saved, next *savedShard, shard string) error {
	err := next.to.End(next.revisions)
	if err == nil {
		err = next.file.Sync()
	}
	if err == nil {
		err = os.Rename(next.file.Name(), s.path(shard))
	}
	if err != nil {
		return errors.Join(err, next.file.Close(), os.Remove(next.file.Name()))
	}
	saved.close()
	saved.object, saved.file, saved.to, saved.changes, saved.revisions = next.object, next.file, next.to, next.changes, next.revisions
	return nil
}

func (s *saver) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, saved := range s.files {
		saved.close()
	}
}
