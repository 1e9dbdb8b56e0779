package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// databases are the ones with a compose file.
var databases = []string{"mariadb", "mysql", "postgres", "sqlite", "sqlserver"}

// loadCompose reads a database's compose file with Compose's own code, which validates it against
// its schema.
func loadCompose(t *testing.T, database string) *types.Project {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("compose", database))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "compose.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: file, Content: text}},
	}, func(o *loader.Options) {
		o.SetProjectName(database, true)
		o.Profiles = []string{"*"} // also the services that start only with a profile
	})
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return p
}

// TestComposeFiles checks that the files are consistent, and valid for the program.
func TestComposeFiles(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob("compose/*/compose.yaml")
	if err != nil || len(found) != len(databases) {
		t.Errorf("compose files are %v, %v", found, err)
	}
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			p := loadCompose(t, database)
			used := map[string]bool{}
			for name, s := range p.Services {
				for key, value := range s.Environment {
					if value != nil && strings.Contains(key, "PASSWORD") && !strings.HasSuffix(key, "_FILE") && key != "MYSQL_RANDOM_ROOT_PASSWORD" && key != "MARIADB_RANDOM_ROOT_PASSWORD" {
						t.Errorf("%s has a password in its environment: %s", name, key)
					}
				}
				for _, secret := range s.Secrets {
					used[secret.Source] = true
				}
				for _, v := range s.Volumes {
					if v.Type == types.VolumeTypeVolume {
						used[v.Source] = true
					} else if info, err := os.Stat(v.Source); err != nil || !info.IsDir() {
						t.Errorf("%s mounts %s, which isn't a directory here", name, v.Source)
					}
				}
			}
			for name := range p.Volumes {
				if !used[name] {
					t.Errorf("the volume %s is unused", name)
				}
			}
			for name := range p.Secrets {
				if !used[name] {
					t.Errorf("the secret %s is unused", name)
				}
			}
			checkServices(t, p)
			checkComposeConfig(t, p)
		})
	}
}

// checkServices checks the arguments, environment and mounts of the sidecar and the worker.
func checkServices(t *testing.T, p *types.Project) {
	t.Helper()
	sidecar, worker := p.Services["qsidecar"], p.Services["worker"]
	if sidecar.Image != imageName || sidecar.User != "" {
		t.Errorf("the sidecar's image is %s, its user %q", sidecar.Image, sidecar.User)
	}
	known(t, append([]string{"serve"}, sidecar.Command...))
	known(t, sidecar.HealthCheck.Test[2:])
	for name, s := range map[string]types.ServiceConfig{"qsidecar": sidecar, "worker": worker} {
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Contains(s.SecurityOpt, "no-new-privileges:true") || s.Restart != types.RestartPolicyUnlessStopped {
			t.Errorf("%s: read-only %v, capabilities without %v, %v, restart %s", name, s.ReadOnly, s.CapDrop, s.SecurityOpt, s.Restart)
		}
		if s.StopGracePeriod == nil || *s.StopGracePeriod <= types.Duration(drainDefault) {
			t.Errorf("%s has %v to stop: less than drain_timeout", name, s.StopGracePeriod)
		}
	}
	if !slices.Contains(worker.GroupAdd, "65532") || worker.DependsOn["qsidecar"].Condition != types.ServiceConditionHealthy {
		t.Errorf("the worker's groups are %v, it depends on %v", worker.GroupAdd, worker.DependsOn)
	}
	for on, d := range sidecar.DependsOn {
		if _, ok := p.Services[on]; !ok || d.Condition == types.ServiceConditionStarted {
			t.Errorf("the sidecar depends on %s: %s", on, d.Condition)
		}
		if d.Condition == types.ServiceConditionHealthy && p.Services[on].HealthCheck == nil {
			t.Errorf("%s has no healthcheck", on)
		}
	}
}

// checkComposeConfig checks that the program reads the config, and that the secret in it exists.
func checkComposeConfig(t *testing.T, p *types.Project) {
	t.Helper()
	if len(p.Services["qsidecar"].Command) == 0 {
		return // it has no config
	}
	text, err := os.ReadFile(filepath.Join(p.WorkingDir, "config", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(text)
	if !strings.Contains(config, "password_file: /run/secrets/"+p.Services["qsidecar"].Secrets[0].Source+"\n") {
		t.Errorf("the config does not name the sidecar's secret %s", p.Services["qsidecar"].Secrets[0].Source)
	}
	dir := folder(t)
	config = strings.Replace(config, "/run/secrets/db_password", put(t, dir, "db_password", password, 0o644), 1)
	config = strings.Replace(config, "@db:1433", "@127.0.0.1:1", 1)
	config = strings.Replace(config, "@db/", "@127.0.0.1:1/", 1)
	out, err := exec.Command(program(t), "check", "--config", put(t, dir, "config.yaml", config, 0o644)).CombinedOutput()
	if code := exitCode(err); code != 1 || !strings.Contains(string(out), "refused") {
		t.Errorf("check of the config ended with %d: %s", code, out)
	}
}
