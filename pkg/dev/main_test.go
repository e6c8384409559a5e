package dev

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/shardplane/shardplane/pkg/dev/supervise"
)

// faultEnv configures faults of fake components: a comma-separated list of <component>=<fault>.
const faultEnv = "FAKE_FAULTS"

// TestMain makes the test binary act as the shardplane program: its first argument is the subcommand.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		run := map[string]func(kind string, args []string) error{
			"shard": fakeComponent, "front-proxy": fakeComponent, "cache-server": fakeComponent, "dev": devProcess,
		}[os.Args[1]]
		if run != nil {
			if err := run(os.Args[1], os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	// lumberjack cannot stop the goroutine that removes old logs.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

// devProcess runs a cluster in a separate process, for tests that kill it.
func devProcess(_ string, args []string) error {
	options := NewOptions()
	flags := pflag.NewFlagSet("dev", pflag.ContinueOnError)
	for _, section := range options.Flags().FlagSets {
		flags.AddFlagSet(section)
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	completed, err := options.Complete()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return RunCluster(ctx, completed, os.Stdout, nil)
}

// fakeComponent parses the flags of the real components and serves /readyz with the given certificates. It requires all
// files in the flags.
func fakeComponent(kind string, args []string) error {
	flags := pflag.NewFlagSet(kind, pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	name := flags.String("name", kind, "")
	address := flags.String("bind-address", "", "")
	port := flags.String("secure-port", "", "")
	certFile := flags.String("tls-cert-file", "", "")
	keyFile := flags.String("tls-private-key-file", "", "")
	clientCA := flags.String("client-ca-file", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, arg := range args {
		flag, file, _ := strings.Cut(arg, "=")
		if strings.HasSuffix(flag, "-file") || strings.HasSuffix(flag, "-kubeconfig") {
			if _, err := os.Stat(file); err != nil {
				return err
			}
		}
	}
	fault := faultOf(*name)
	fmt.Printf("%s is up\n", *name)
	switch {
	case fault == "usage":
		fmt.Fprintln(os.Stderr, "shardplane "+kind+": unknown flag")
		os.Exit(supervise.ExitUsage)
	case fault == "panic":
		panic("on purpose")
	case strings.HasPrefix(fault, "once:"): // dies at its first start
		marker := filepath.Join(strings.TrimPrefix(fault, "once:"), *name)
		if _, err := os.Stat(marker); errors.Is(err, os.ErrNotExist) {
			return errors.Join(os.WriteFile(marker, nil, 0o600), errors.New("first start fails"))
		}
	}
	return fakeServe(net.JoinHostPort(*address, *port), *certFile, *keyFile, *clientCA, fault)
}

func fakeServe(address, certFile, keyFile, clientCA, fault string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ca, err := os.ReadFile(clientCA)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	ready := time.Now().Add(50 * time.Millisecond)
	server := &http.Server{
		Addr:              address,
		TLSConfig:         &tls.Config{ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13},
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if fault == "never-ready" || time.Now().Before(ready) {
				w.WriteHeader(http.StatusInternalServerError)
				fmt.Fprintln(w, "[+]ping ok\n[-]informer-sync failed: reason withheld\n[-]dreams failed: reason withheld\nreadyz check failed")
				return
			}
			fmt.Fprintln(w, "ok")
		}),
	}
	go func() {
		<-ctx.Done()
		if fault != "stubborn" {
			_ = server.Close()
		}
	}()
	if err := server.ListenAndServeTLS(certFile, keyFile); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func faultOf(name string) string {
	for fault := range strings.SplitSeq(os.Getenv(faultEnv), ",") {
		if component, what, ok := strings.Cut(fault, "="); ok && component == name {
			return what
		}
	}
	return ""
}
