package etcd

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy/adapter"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// leaseKeepAliveTimeout is how long the client waits for the first response to a keep-alive of a lease.
const leaseKeepAliveTimeout = time.Second

// errStopping is returned to calls when the server stops. A network client would also receive Unavailable.
var errStopping = status.Error(codes.Unavailable, "the embedded etcd is stopping")

// newInProcessClient returns a client that calls the handlers of s directly, like etcd's v3client, and counts calls.
func newInProcessClient(ctx context.Context, s *etcdserver.EtcdServer, calls *callCounter) *clientv3.Client {
	c := clientv3.NewCtxClient(ctx, clientv3.WithZapLogger(s.Logger()))
	kv := countedKV{KVServer: v3rpc.NewQuotaKVServer(s), calls: calls}
	c.KV = clientv3.NewKVFromKVClient(adapter.KvServerToKvClient(kv), c)
	lease := countedLease{LeaseServer: v3rpc.NewQuotaLeaseServer(s), calls: calls}
	c.Lease = clientv3.NewLeaseFromLeaseClient(adapter.LeaseServerToLeaseClient(lease), c, leaseKeepAliveTimeout)
	watch := countedWatch{WatchServer: v3rpc.NewWatchServer(s), kv: kv, calls: calls}
	c.Watcher = clientv3.NewWatchFromWatchClient(adapter.WatchServerToWatchClient(watch), c)
	maintenance := countedMaintenance{server: v3rpc.NewMaintenanceServer(s, nil), calls: calls}
	c.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(adapter.MaintenanceServerToMaintenanceClient(maintenance), c)
	return c
}

// callCounter is locked for reading by each pending call. Stop locks it forever, which rejects further calls and waits
// for pending ones, because reading from a closed database would crash the process.
type callCounter struct{ sync.RWMutex }

// begin must be followed by RUnlock. It fails as soon as Stop waits.
func (c *callCounter) begin() error {
	if !c.TryRLock() {
		return errStopping
	}
	return nil
}

// stopping reports whether long calls should end.
func (c *callCounter) stopping() bool {
	if c.begin() != nil {
		return true
	}
	c.RUnlock()
	return false
}

func counted[Request, Response any](
	ctx context.Context, calls *callCounter, r *Request,
	call func(context.Context, *Request) (*Response, error),
) (*Response, error) {
	if err := calls.begin(); err != nil {
		return nil, err
	}
	defer calls.RUnlock()
	return call(ctx, r)
}

type countedKV struct {
	pb.KVServer
	calls *callCounter
}

func (s countedKV) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return counted(ctx, s.calls, r, s.KVServer.Range)
}

func (s countedKV) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	return counted(ctx, s.calls, r, s.KVServer.Put)
}

func (s countedKV) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	return counted(ctx, s.calls, r, s.KVServer.DeleteRange)
}

func (s countedKV) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return counted(ctx, s.calls, r, s.KVServer.Txn)
}

func (s countedKV) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	return counted(ctx, s.calls, r, s.KVServer.Compact)
}

type countedLease struct {
	pb.LeaseServer
	calls *callCounter
}

func (s countedLease) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	return counted(ctx, s.calls, r, s.LeaseServer.LeaseGrant)
}

func (s countedLease) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	return counted(ctx, s.calls, r, s.LeaseServer.LeaseRevoke)
}

func (s countedLease) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	return counted(ctx, s.calls, r, s.LeaseServer.LeaseTimeToLive)
}

func (s countedLease) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.RUnlock()
	return s.LeaseServer.LeaseKeepAlive(stream)
}

type countedWatch struct {
	pb.WatchServer
	kv    pb.KVServer
	calls *callCounter
}

func (s countedWatch) Watch(stream pb.Watch_WatchServer) error {
	if err := s.calls.begin(); err != nil {
		return err
	}
	defer s.calls.RUnlock()
	return s.WatchServer.Watch(withValuesBefore{stream, s.kv})
}

// withValuesBefore adds missing previous values to events. etcd (v3rpc, recvLoop) records that a watch requests them
// after it has started the watch. Events in between have none, as if they were compacted. Upstream's watches would
// fail because of this.
type withValuesBefore struct {
	pb.Watch_WatchServer
	kv pb.KVServer
}

func (s withValuesBefore) Send(r *pb.WatchResponse) error {
	for i, e := range r.Events {
		if e.PrevKv != nil || v3rpc.IsCreateEvent(e) {
			continue
		}
		before, err := s.kv.Range(s.Context(), &pb.RangeRequest{Key: e.Kv.Key, Revision: e.Kv.ModRevision - 1, Serializable: true})
		if err == nil && len(before.Kvs) == 1 {
			// Do not modify the event, because other watches may share it.
			r.Events[i] = &mvccpb.Event{Type: e.Type, Kv: e.Kv, PrevKv: before.Kvs[0]}
		}
	}
	return s.Watch_WatchServer.Send(r)
}

// countedMaintenance provides the calls that clients need. Others return Unimplemented.
type countedMaintenance struct {
	pb.UnimplementedMaintenanceServer
	server pb.MaintenanceServer
	calls  *callCounter
}

func (s countedMaintenance) Status(ctx context.Context, r *pb.StatusRequest) (*pb.StatusResponse, error) {
	return counted(ctx, s.calls, r, s.server.Status)
}

func (s countedMaintenance) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	return counted(ctx, s.calls, r, s.server.Alarm)
}
