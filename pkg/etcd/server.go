package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
)

// Server is an embedded etcd server.
type Server struct {
	dir    *dataDir
	etcd   *embed.Etcd
	client *kubernetes.Client
	calls  *callCounter

	stopOnce sync.Once
}

// Start starts an embedded etcd server and returns when it is ready. ctx limits the start only; Stop ends it.
func Start(ctx context.Context, cfg Config) (s *Server, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s = &Server{calls: &callCounter{}}
	defer func() {
		if err != nil {
			s.Stop()
			s = nil
		}
	}()
	if s.dir, err = openDataDir(cfg.DataDir); err != nil {
		return s, err
	}
	embedConfig, err := cfg.embedConfig(newLogger())
	if err != nil {
		return s, err
	}
	if s.etcd, err = startEtcd(embedConfig); err != nil {
		return s, err
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
	case err := <-s.etcd.Err():
		return s, fmt.Errorf("the embedded etcd failed to start: %w", err)
	case <-s.etcd.Server.StopNotify():
		return s, errors.New("the embedded etcd stopped during its start: see its log with -v=5")
	case <-ctx.Done():
		return s, fmt.Errorf("the embedded etcd did not become ready: %w", context.Cause(ctx))
	}
	if err := s.dir.ready(); err != nil {
		return s, err
	}
	client := newInProcessClient(context.WithoutCancel(ctx), s.etcd.Server, s.calls)
	s.client = wrapClient(client)
	if err := s.writable(ctx); err != nil {
		return s, err
	}
	return s, nil
}

// writable disarms the alarm that was raised when etcd was full. etcd does not disarm it when space is available,
// not even after a restart, and no other client can reach an embedded etcd. If there is still no space, the next
// write raises it again.
func (s *Server) writable(ctx context.Context) error {
	raised, err := s.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("listing the alarms of the embedded etcd: %w", err)
	}
	for _, alarm := range raised.Alarms {
		if alarm.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return fmt.Errorf("disarming the alarm of the embedded etcd, which was full: %w", err)
		}
	}
	return nil
}

// startEtcd starts etcd, and returns an error if etcd panics or would end the process.
func startEtcd(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, err = nil, corrupt(cfg.Dir, fmt.Errorf("etcd cannot read it: %v", r))
		}
	}()
	e, err = embed.StartEtcd(cfg)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("cannot write to the data directory %s: choose a writable --data-dir: %w", cfg.Dir, err)
	case err != nil:
		// It opens no port and reads only the directory.
		return nil, corrupt(cfg.Dir, err)
	}
	return e, nil
}

// Client returns the client of the server, which all resources share.
func (s *Server) Client() *kubernetes.Client { return s.client }

// Done is closed when the server has stopped, by Stop or after an error.
func (s *Server) Done() <-chan struct{} { return s.etcd.Server.StopNotify() }

// Stop closes the client, stops the server and unlocks the data directory. Pending calls complete; later ones
// fail. It may be called more than once.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		s.calls.close()
		if s.client != nil {
			// The error comes from the context that Close cancels.
			_ = s.client.Close()
		}
		s.calls.wait()
		if s.etcd != nil {
			s.etcd.Close()
		}
		if s.dir != nil {
			s.dir.close()
		}
	})
}
