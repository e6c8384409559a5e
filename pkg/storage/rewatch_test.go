package storage

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// TestReplacedWatchIsNotAhead verifies that a consistent list contains an object whose event the watch cache could not
// decrypt at first, so that it watches again. Progress of the first watch must not reach the second one, which has not
// received the event yet.
func TestReplacedWatchIsNotAhead(t *testing.T) {
	t.Parallel()
	client, overtaken := overtakingClient(t)
	b := backendOf(t, BackendConfig{Client: client, Transformers: &failingOnce{when: overtaken.held}})
	s := open(t, b, podsGR)
	ctx := in(t.Context(), "aa")
	created, err := strconv.ParseInt(create(ctx, t, s, newPod("ns", "one")).ResourceVersion, 10, 64)
	require.NoError(t, err)
	overtaken.since.Store(created)
	require.Len(t, list(ctx, t, s, "/pods/", listOpts()).Items, 1)
	select {
	case <-overtaken.held:
	default:
		require.FailNow(t, "no progress of the first watch")
	}
}

// failingOnce fails to decrypt the first object as soon as the channel is closed.
type failingOnce struct {
	sealer

	when <-chan struct{}
	once sync.Once
}

func (f *failingOnce) TransformerForResource(schema.GroupResource) value.Transformer { return f }

func (f *failingOnce) TransformFromStorage(ctx context.Context, data []byte, key value.Context) (out []byte, stale bool, err error) {
	f.once.Do(func() {
		select {
		case <-f.when:
		case <-time.After(deadline):
		}
		err = errors.New("the key is not available yet")
	})
	if err != nil {
		return nil, false, err
	}
	return f.sealer.TransformFromStorage(ctx, data, key)
}

// overtakingClient returns a client of an etcd whose responses are ordered like those of overtaking. The client
// processes the end of a watch late.
func overtakingClient(t *testing.T) (*kubernetes.Client, *overtaking) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.UnsafeNoFsync, cfg.LogLevel = t.TempDir(), true, "panic"
	cfg.ListenPeerUrls, cfg.ListenClientUrls = nil, nil
	server, err := embed.StartEtcd(cfg)
	require.NoError(t, err)
	t.Cleanup(server.Close)
	<-server.Server.ReadyNotify()
	c := v3client.New(server.Server)
	t.Cleanup(func() { _ = c.Close() })
	responses := &overtaking{WatchClient: adapter.WatchServerToWatchClient(v3rpc.NewWatchServer(server.Server)), held: make(chan struct{})}
	c.Watcher = lateEnd{clientv3.NewWatchFromWatchClient(responses, c)}
	client := &kubernetes.Client{Client: c}
	client.Kubernetes = client
	return client, responses
}

type lateEnd struct{ clientv3.Watcher }

func (w lateEnd) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(100*time.Millisecond, cancel) })
	return w.Watcher.Watch(late, key, opts...)
}

// overtaking delays the progress notifications of the first stream since a revision until another watch was created on
// it. This may happen in etcd, because both come from different channels.
type overtaking struct {
	pb.WatchClient

	streams, since atomic.Int64
	// held is closed when a notification is delayed.
	held chan struct{}
}

func (o *overtaking) Watch(ctx context.Context, opts ...grpc.CallOption) (grpc.BidiStreamingClient[pb.WatchRequest, pb.WatchResponse], error) {
	stream, err := o.WatchClient.Watch(ctx, opts...)
	if err != nil || o.streams.Add(1) > 1 {
		return stream, err
	}
	return &overtakenStream{BidiStreamingClient: stream, by: o}, nil
}

type overtakenStream struct {
	grpc.BidiStreamingClient[pb.WatchRequest, pb.WatchResponse]

	by         *overtaking
	late, next []*pb.WatchResponse
}

func (s *overtakenStream) Recv() (*pb.WatchResponse, error) {
	for len(s.next) == 0 {
		r, err := s.BidiStreamingClient.Recv()
		since := s.by.since.Load()
		switch {
		case err != nil:
			return nil, err
		case r.WatchId == clientv3.InvalidWatchID && since > 0 && r.Header.Revision >= since:
			if len(s.late) == 0 {
				close(s.by.held)
			}
			s.late = append(s.late, r)
		default:
			s.next = []*pb.WatchResponse{r}
			if r.Created && len(s.late) > 0 {
				s.next, s.late = append(s.next, s.late...), nil
				s.by.since.Store(0)
			}
		}
	}
	r := s.next[0]
	s.next = s.next[1:]
	return r, nil
}
