package etcd

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
)

// watchStream records sent responses.
type watchStream struct {
	pb.Watch_WatchServer

	ctx  context.Context //nolint:containedctx // the stream's context
	sent []*pb.WatchResponse
}

func (s *watchStream) Context() context.Context { return s.ctx }

func (s *watchStream) Send(r *pb.WatchResponse) error {
	s.sent = append(s.sent, r)
	return nil
}

// sends is a server with watches that send the given events.
type sends struct {
	pb.UnimplementedWatchServer

	events []*mvccpb.Event
}

func (s sends) Watch(stream pb.Watch_WatchServer) error {
	return stream.Send(&pb.WatchResponse{Events: s.events})
}

// TestValuesBefore verifies that changes have previous values, even if etcd has not read them, unless they are compacted,
// and that shared responses are not modified.
func TestValuesBefore(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	kv := v3rpc.NewQuotaKVServer(s.etcd.Server)
	var events []*mvccpb.Event
	for _, value := range []string{"one", "two", "three"} {
		put(t, s, "a", value)
		now, err := s.Client().KV.Get(t.Context(), "a")
		require.NoError(t, err)
		events = append(events, &mvccpb.Event{Type: mvccpb.Event_PUT, Kv: now.Kvs[0]})
	}
	deleted, err := s.Client().Client.Delete(t.Context(), "a")
	require.NoError(t, err)
	events = append(events, &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte("a"), ModRevision: deleted.Header.Revision}})
	known := &mvccpb.KeyValue{Key: []byte("a"), Value: []byte("known")}
	events[2].PrevKv = known

	before := func() (values []string) {
		stream := &watchStream{ctx: t.Context()}
		require.NoError(t, countedWatch{WatchServer: sends{events: slices.Clone(events)}, kv: kv, calls: &callCounter{}}.Watch(stream))
		require.Len(t, stream.sent, 1)
		require.Len(t, stream.sent[0].Events, len(events))
		for i, e := range stream.sent[0].Events {
			require.Equal(t, events[i].Type, e.Type)
			require.Same(t, events[i].Kv, e.Kv)
			value := "none"
			if e.PrevKv != nil {
				value = string(e.PrevKv.Value)
			}
			values = append(values, value)
		}
		return values
	}
	require.Equal(t, []string{"none", "one", "known", "three"}, before())
	require.Nil(t, events[1].PrevKv)
	require.Nil(t, events[3].PrevKv)

	_, err = s.Client().Compact(t.Context(), events[2].Kv.ModRevision)
	require.NoError(t, err)
	require.Equal(t, []string{"none", "none", "known", "three"}, before())
}
