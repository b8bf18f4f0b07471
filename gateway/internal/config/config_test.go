package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func environment(t *testing.T) map[string]string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		if err := os.WriteFile(filepath.Join(folder, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return map[string]string{
		"FALCON_GATEWAY_ID":     "gateway-0",
		"FALCON_POD_IP":         "10.0.0.1",
		"FALCON_TLS_DIR":        folder,
		"FALCON_ETCD_TLS_DIR":   folder,
		"FALCON_JOBS_AUTHORITY": filepath.Join(folder, "ca.crt"),
		"FALCON_ETCD_ENDPOINTS": "etcd-0:2379, etcd-1:2379",
	}
}

func TestWhatIsSetIsTakenAndTheRestHasDefaults(t *testing.T) {
	variables := environment(t)
	config, err := Load(func(name string) string { return variables[name] })
	if err != nil {
		t.Fatal(err)
	}
	if config.AgentsListen != ":7443" || config.Connections != 20_000 || len(config.EtcdEndpoints) != 2 ||
		config.EtcdEndpoints[1] != "etcd-1:2379" {
		t.Errorf("%+v", config)
	}
}

func TestTheOperatorsAddressHasTheListenersPort(t *testing.T) {
	for ip, wanted := range map[string]string{"10.0.0.1": "10.0.0.1:9", "::1": "[::1]:9", "fd00::a:7": "[fd00::a:7]:9"} {
		variables := environment(t)
		variables["FALCON_POD_IP"], variables["FALCON_OPERATOR_LISTEN"] = ip, ":9"
		config, err := Load(func(name string) string { return variables[name] })
		if err != nil {
			t.Fatal(err)
		}
		if address := config.OperatorAddress(); address != wanted {
			t.Errorf("%s, not %s", address, wanted)
		}
	}
}

func TestTheAPIServerIsNeededOnlyWhereMetricsAskForATokenOfTheirReaders(t *testing.T) {
	variables := environment(t)
	load := func() (*Config, error) { return Load(func(name string) string { return variables[name] }) }
	if config, err := load(); err != nil || config.MetricsListen != "" {
		t.Errorf("%+v, %v", config, err)
	}
	variables["FALCON_METRICS_READER"] = "falcon-metrics-reader"
	_, err := load()
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != 2 {
		t.Errorf("%v", err)
	}
	account := variables["FALCON_TLS_DIR"]
	if err := os.WriteFile(filepath.Join(account, "token"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	variables["FALCON_SERVICE_ACCOUNT_DIR"] = account
	variables["KUBERNETES_SERVICE_HOST"], variables["KUBERNETES_SERVICE_PORT"] = "fd00::1", "443"
	config, err := load()
	if err != nil || config.APIServer != "https://[fd00::1]:443" || config.MetricsListen != ":8444" {
		t.Errorf("%+v, %v", config, err)
	}
}

func TestAllMistakesAreNamedAtOnce(t *testing.T) {
	variables := environment(t)
	variables["FALCON_GATEWAY_ID"] = ""
	variables["FALCON_POD_IP"] = "[::1]"
	variables["FALCON_MAX_CONNECTIONS"] = "many"
	variables["FALCON_LOG_LEVEL"] = "loud"
	variables["FALCON_TLS_DIR"] = t.TempDir()
	variables["FALCON_ETCD_ENDPOINTS"] = "etcd-0"
	_, err := Load(func(name string) string { return variables[name] })
	var problems Problems
	if !errors.As(err, &problems) {
		t.Fatal(err)
	}
	if len(problems) != 7 { // the folder lacks two files
		t.Errorf("%d problems:\n%v", len(problems), err)
	}
	for _, name := range []string{"FALCON_GATEWAY_ID is not set", "FALCON_POD_IP=\"[::1]\"",
		"FALCON_MAX_CONNECTIONS=\"many\"", "FALCON_LOG_LEVEL=\"loud\"", "FALCON_TLS_DIR", "FALCON_ETCD_ENDPOINTS"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in:\n%v", name, err)
		}
	}
}
