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

// Server is an etcd server that runs in this process.
type Server struct {
	dir    *dataDir
	etcd   *embed.Etcd
	client *kubernetes.Client
	calls  *callCounter

	stopOnce sync.Once
}

// Start starts an embedded etcd server and returns when it serves. ctx bounds
// the start only; Stop ends the server.
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
		return s, errors.New("the embedded etcd stopped while it started: see its log with -v=5")
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

// writable has etcd accept writes again that it refuses since it was full. It
// does not do so by itself when there is room, after a restart even, and nobody
// else reaches an embedded one. If there is no room still, it finds out with the
// first write.
func (s *Server) writable(ctx context.Context) error {
	raised, err := s.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("the embedded etcd does not say whether it is full: %w", err)
	}
	for _, alarm := range raised.Alarms {
		if alarm.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := s.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			return fmt.Errorf("the embedded etcd was full, and does not accept writes again: %w", err)
		}
	}
	return nil
}

// startEtcd starts etcd, and gives an error where etcd would panic or end the
// process.
func startEtcd(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, err = nil, corrupt(cfg.Dir, fmt.Errorf("etcd gave up reading it: %v", r))
		}
	}()
	e, err = embed.StartEtcd(cfg)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("cannot write to the data directory %s: choose a writable --data-dir: %w", cfg.Dir, err)
	case err != nil:
		// It opens no port and reads nothing but the directory.
		return nil, corrupt(cfg.Dir, err)
	}
	return e, nil
}

// Client returns the client of the server, which all resources share.
func (s *Server) Client() *kubernetes.Client { return s.client }

// Done is closed when the server has stopped, be it by Stop or by an error.
func (s *Server) Done() <-chan struct{} { return s.etcd.Server.StopNotify() }

// Stop ends the client and the server and unlocks the data directory. Calls
// that are in flight are answered; later ones fail. It may be called again.
func (s *Server) Stop() {
	s.stopOnce.Do(func() {
		s.calls.close()
		if s.client != nil {
			// The error is that of the context which Close cancels.
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
