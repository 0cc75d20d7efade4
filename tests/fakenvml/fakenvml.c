/* fakenvml: a stand-in libnvidia-ml.so.1 that answers NVML calls from an INI snapshot.
 * Build : gcc -shared -fPIC -O2 -Wall -Wextra -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fakenvml.c
 * Use   : FAKENVML=/path/snapshot.ini LD_LIBRARY_PATH=/dir/of/so  nvitop -1 | gpustat | python tool.py
 * The snapshot is re-read on nvmlInit and whenever its mtime/size changes (so a test can change
 * temperatures, add processes, or make calls fail while the tool runs).
 * Keys: [system] driver, cuda (e.g. 12040), init_error (nvmlReturn code)
 *       [gpuN] see `snapshot-*.ini`; "err.<nvmlFunctionSuffix> = <code>" makes one call fail.
 *       [gpuN] "hang.<nvmlFunctionSuffix> = <seconds>" makes one call block.
 *       [gpuN.procM] pid (`self`: the caller's parent), type (C|G), mem_mib, sm, gi (GPU instance, with MIG)
 *       [gpuN.migM] name, uuid, mem_total_mib, mem_used_mib, gi: a MIG slice (mig = 1 in [gpuN])
 * With -DOLD_DRIVER the calls that a 2021 driver (R460) lacks are left out of the library.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <ctype.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int R;
enum { OK=0, UNINIT=1, INVAL=2, NOSUP=3, NOPERM=4, NOTFOUND=6, SMALL=7, NODRV=9, TIMEOUT=10,
       LIBNF=12, FNF=13, LOST=15, ARGVER=25, UNKNOWN=999 };

/* ---- tiny INI store -------------------------------------------------- */
typedef struct { char sec[48], key[64], val[192]; } kv;
static kv *KV; static int NKV, CAP; static int INITED; static struct stat ST;
static pthread_mutex_t MU = PTHREAD_MUTEX_INITIALIZER;
static char *trim(char *s){ while(isspace((unsigned char)*s)) s++; char *e=s+strlen(s);
  while(e>s && isspace((unsigned char)e[-1])) *--e=0; return s; }
static void load(void){
  const char *p=getenv("FAKENVML"); struct stat st;
  if(!p || stat(p,&st)) { NKV=0; return; }
  if(KV && st.st_mtim.tv_sec==ST.st_mtim.tv_sec && st.st_mtim.tv_nsec==ST.st_mtim.tv_nsec && st.st_size==ST.st_size) return;
  FILE *f=fopen(p,"r"); if(!f) return; ST=st; NKV=0; char line[512], sec[48]="";
  while(fgets(line,sizeof line,f)){ char *s=trim(line); if(!*s||*s=='#'||*s==';') continue;
    if(*s=='['){ char *e=strchr(s,']'); if(e)*e=0; snprintf(sec,sizeof sec,"%.47s",s+1); continue; }
    char *eq=strchr(s,'='); if(!eq) continue; *eq=0; char *k=trim(s), *v=trim(eq+1);
    if(NKV==CAP){ CAP=CAP?CAP*2:256; KV=realloc(KV,CAP*sizeof(kv)); }
    snprintf(KV[NKV].sec,48,"%s",sec); snprintf(KV[NKV].key,64,"%.63s",k); snprintf(KV[NKV].val,192,"%.191s",v); NKV++; }
  fclose(f); }
static const char *get(const char *sec,const char *key){ for(int i=0;i<NKV;i++) if(!strcmp(KV[i].sec,sec)&&!strcmp(KV[i].key,key)) return KV[i].val; return NULL; }
static int has_sec(const char *sec){ for(int i=0;i<NKV;i++) if(!strcmp(KV[i].sec,sec)) return 1; return 0; }
static int ngpu(void){ int n=0; char s[16]; for(;;n++){ snprintf(s,16,"gpu%d",n); if(!has_sec(s)) return n; } }

/* handles are pointers to static slots; index recovered by subtraction */
static char SLOT[512]; typedef void *dev;
static int idx(dev d){ long i=(char*)d-SLOT; return (i<0||i>=512)?-1:(int)i; }
/* slots from 64 on are MIG slices, eight to a card */
static const char *section(dev d,char s[24]){ int i=idx(d); if(i<64) snprintf(s,24,"gpu%d",i); else snprintf(s,24,"gpu%d.mig%d",(i-64)/8,(i-64)%8); return s; }
static const char *dget(dev d,const char *k){ char s[24]; return get(section(d,s),k); }
static R pre(dev d,const char *fn){ pthread_mutex_lock(&MU); load(); pthread_mutex_unlock(&MU);
  if(!INITED) return UNINIT; int i=idx(d); if(i<0||(i<64&&i>=ngpu())) return INVAL;
  char k[64]; snprintf(k,64,"hang.%s",fn); const char *h=dget(d,k); if(h) sleep(atoi(h));
  snprintf(k,64,"err.%s",fn); const char *e=dget(d,k); if(!e) e=dget(d,"err.*"); return e?atoi(e):OK; }
#define PRE(fn) do{ R r_=pre(d,fn); if(r_) return r_; }while(0)
static R num(dev d,const char *fn,const char *key,unsigned long long *o){ PRE(fn); const char *v=dget(d,key);
  if(!v||!strcmp(v,"n/a")) return NOSUP; *o=strtoull(v,NULL,0); return OK; }
static R str(const char *v,char *o,unsigned n){ if(!v) return NOSUP; if(strlen(v)+1>n) return SMALL; strcpy(o,v); return OK; }
#define UINT(NAME,KEY) R NAME(dev d,unsigned *o){ unsigned long long v; R r=num(d,#NAME+10,KEY,&v); if(!r) *o=(unsigned)v; return r; }
#define STR(NAME,KEY) R NAME(dev d,char *o,unsigned n){ PRE(#NAME+10); return str(dget(d,KEY),o,n); }
/* "#NAME+10" drops the "nvmlDevice" prefix: err.GetName = 15 */

/* ---- init / system --------------------------------------------------- */
R nvmlInit_v2(void){ load(); const char *e=get("system","init_error"); if(e&&atoi(e)) return atoi(e);
  if(!getenv("FAKENVML")) return NODRV; INITED++; return OK; }
R nvmlInitWithFlags(unsigned f){ (void)f; return nvmlInit_v2(); }
R nvmlInit(void){ return nvmlInit_v2(); }
R nvmlShutdown(void){ if(!INITED) return UNINIT; INITED--; return OK; }
const char *nvmlErrorString(R r){ switch(r){ case 0:return "Success"; case 1:return "Uninitialized"; case 2:return "Invalid Argument";
  case 3:return "Not Supported"; case 4:return "Insufficient Permissions"; case 6:return "Not Found"; case 7:return "Insufficient Size";
  case 9:return "Driver Not Loaded"; case 10:return "Timeout"; case 12:return "Shared Library Not Found"; case 13:return "Function Not Found";
  case 15:return "GPU is lost"; case 16:return "GPU requires restart"; case 18:return "Driver/library version mismatch"; case 25:return "Argument version mismatch"; default:return "Unknown Error"; } }
R nvmlSystemGetDriverVersion(char *o,unsigned n){ if(!INITED) return UNINIT; load(); return str(get("system","driver"),o,n); }
R nvmlSystemGetNVMLVersion(char *o,unsigned n){ if(!INITED) return UNINIT; const char *v=get("system","nvml"); return str(v?v:get("system","driver"),o,n); }
R nvmlSystemGetCudaDriverVersion_v2(int *v){ if(!INITED) return UNINIT; const char *s=get("system","cuda"); if(!s) return NOSUP; *v=atoi(s); return OK; }
R nvmlSystemGetCudaDriverVersion(int *v){ return nvmlSystemGetCudaDriverVersion_v2(v); }
R nvmlSystemGetProcessName(unsigned pid,char *o,unsigned n){ char p[64]; snprintf(p,64,"/proc/%u/cmdline",pid); FILE *f=fopen(p,"r"); if(!f) return NOTFOUND;
  size_t k=fread(o,1,n-1,f); fclose(f); o[k]=0; return OK; }
/* ---- enumeration ----------------------------------------------------- */
R nvmlDeviceGetCount_v2(unsigned *n){ if(!INITED) return UNINIT; load(); *n=ngpu(); return OK; }
R nvmlDeviceGetCount(unsigned *n){ return nvmlDeviceGetCount_v2(n); }
R nvmlDeviceGetHandleByIndex_v2(unsigned i,dev *d){ if(!INITED) return UNINIT; load(); if((int)i>=ngpu()) return INVAL; *d=SLOT+i; return pre(*d,"GetHandleByIndex"); }
R nvmlDeviceGetHandleByIndex(unsigned i,dev *d){ return nvmlDeviceGetHandleByIndex_v2(i,d); }
static R by(const char *key,const char *want,dev *d){ if(!INITED) return UNINIT; load(); for(int i=0;i<ngpu();i++){ const char *v=dget(SLOT+i,key);
  if(v&&!strcasecmp(v,want)){ *d=SLOT+i; return OK; } } return NOTFOUND; }
R nvmlDeviceGetHandleByUUID(const char *u,dev *d){ return by("uuid",u,d); }
R nvmlDeviceGetHandleByPciBusId_v2(const char *b,dev *d){ return by("pci_bus_id",b,d); }
R nvmlDeviceGetHandleBySerial(const char *b,dev *d){ return by("serial",b,d); }
R nvmlDeviceGetIndex(dev d,unsigned *o){ PRE("GetIndex"); *o=idx(d); return OK; }
R nvmlDeviceGetMinorNumber(dev d,unsigned *o){ PRE("GetMinorNumber"); *o=idx(d); return OK; }
STR(nvmlDeviceGetName,"name") STR(nvmlDeviceGetUUID,"uuid") STR(nvmlDeviceGetSerial,"serial") STR(nvmlDeviceGetVbiosVersion,"vbios")
typedef struct { char busIdLegacy[16]; unsigned domain,bus,device,pciDeviceId,pciSubSystemId; char busId[32]; } pci_t;
R nvmlDeviceGetPciInfo_v3(dev d,pci_t *p){ PRE("GetPciInfo"); const char *b=dget(d,"pci_bus_id"); if(!b) return NOSUP; memset(p,0,sizeof *p);
  snprintf(p->busId,32,"%s",b); sscanf(b,"%x:%x:%x",&p->domain,&p->bus,&p->device); snprintf(p->busIdLegacy,16,"%04x:%02x:%02x.0",p->domain&0xffff,p->bus&0xff,p->device&0xff);
  const char *v=dget(d,"pci_device_id"); p->pciDeviceId=v?strtoul(v,NULL,16):0; return OK; }
R nvmlDeviceGetPciInfo_v2(dev d,pci_t *p){ return nvmlDeviceGetPciInfo_v3(d,p); }
/* ---- memory ---------------------------------------------------------- */
typedef unsigned long long u64; typedef struct { u64 total,free_,used; } mem1; typedef struct { unsigned version; u64 total,reserved,free_,used; } mem2;
#define MIB (1024ULL*1024ULL)
static u64 g(dev d,const char *k,u64 def){ const char *v=dget(d,k); return v?strtoull(v,NULL,0):def; }
R nvmlDeviceGetMemoryInfo(dev d,mem1 *m){ PRE("GetMemoryInfo"); u64 t=g(d,"mem_total_mib",0),u=g(d,"mem_used_mib",0),r=g(d,"mem_reserved_mib",0); if(!t) return NOSUP;
  m->total=t*MIB; m->used=(u+r)*MIB; m->free_=m->total-m->used; return OK; }
#ifndef OLD_DRIVER
R nvmlDeviceGetMemoryInfo_v2(dev d,mem2 *m){ PRE("GetMemoryInfo_v2"); if(m->version!=(sizeof(mem2)|(2u<<24))) return ARGVER;
  u64 t=g(d,"mem_total_mib",0),u=g(d,"mem_used_mib",0),r=g(d,"mem_reserved_mib",0); if(!t) return NOSUP;
  m->total=t*MIB; m->used=u*MIB; m->reserved=r*MIB; m->free_=m->total-m->used-m->reserved; return OK; }
#endif
R nvmlDeviceGetBAR1MemoryInfo(dev d,mem1 *m){ PRE("GetBAR1MemoryInfo"); u64 t=g(d,"bar1_total_mib",0); if(!t) return NOSUP; m->total=t*MIB; m->used=g(d,"bar1_used_mib",2)*MIB; m->free_=m->total-m->used; return OK; }
/* ---- telemetry ------------------------------------------------------- */
typedef struct { unsigned gpu,memory; } util_t;
R nvmlDeviceGetUtilizationRates(dev d,util_t *u){ PRE("GetUtilizationRates"); if(!dget(d,"util_gpu")) return NOSUP; u->gpu=g(d,"util_gpu",0); u->memory=g(d,"util_mem",0); return OK; }
R nvmlDeviceGetEncoderUtilization(dev d,unsigned *u,unsigned *us){ PRE("GetEncoderUtilization"); *u=g(d,"util_enc",0); *us=167000; return OK; }
R nvmlDeviceGetDecoderUtilization(dev d,unsigned *u,unsigned *us){ PRE("GetDecoderUtilization"); *u=g(d,"util_dec",0); *us=167000; return OK; }
R nvmlDeviceGetTemperature(dev d,unsigned s,unsigned *o){ (void)s; u64 v; R r=num(d,"GetTemperature","temp_c",&v); if(!r)*o=v; return r; }
typedef struct { unsigned version, sensor; int temperature; } tempv;
R nvmlDeviceGetTemperatureV(dev d,tempv *t){ u64 v; R r=num(d,"GetTemperature","temp_c",&v); if(!r) t->temperature=v; return r; }
R nvmlDeviceGetTemperatureThreshold(dev d,unsigned t,unsigned *o){ u64 v; R r=num(d,"GetTemperatureThreshold",t==0?"temp_shutdown_c":t==1?"temp_slowdown_c":"temp_max_c",&v); if(!r)*o=v; return r; }
UINT(nvmlDeviceGetFanSpeed,"fan_pct") UINT(nvmlDeviceGetPowerUsage,"power_mw") UINT(nvmlDeviceGetEnforcedPowerLimit,"power_limit_mw")
UINT(nvmlDeviceGetPowerManagementLimit,"power_limit_mw") UINT(nvmlDeviceGetPowerManagementDefaultLimit,"power_default_limit_mw") UINT(nvmlDeviceGetPerformanceState,"pstate") UINT(nvmlDeviceGetPowerState,"pstate")
R nvmlDeviceGetPowerManagementLimitConstraints(dev d,unsigned *a,unsigned *b){ PRE("GetPowerManagementLimitConstraints"); *a=g(d,"power_min_limit_mw",100000); *b=g(d,"power_max_limit_mw",g(d,"power_limit_mw",0)); return OK; }
R nvmlDeviceGetTotalEnergyConsumption(dev d,u64 *o){ return num(d,"GetTotalEnergyConsumption","energy_mj",o); }
static const char *CK[]={"clock_gr","clock_sm","clock_mem","clock_video"}; static const char *MK[]={"max_clock_gr","max_clock_sm","max_clock_mem","max_clock_video"};
R nvmlDeviceGetClockInfo(dev d,unsigned t,unsigned *o){ if(t>3) return INVAL; u64 v; R r=num(d,"GetClockInfo",CK[t],&v); if(!r)*o=v; return r; }
R nvmlDeviceGetMaxClockInfo(dev d,unsigned t,unsigned *o){ if(t>3) return INVAL; u64 v; R r=num(d,"GetMaxClockInfo",MK[t],&v); if(!r)*o=v; return r; }
R nvmlDeviceGetApplicationsClock(dev d,unsigned t,unsigned *o){ return nvmlDeviceGetMaxClockInfo(d,t,o); }
R nvmlDeviceGetCurrentClocksThrottleReasons(dev d,u64 *o){ return num(d,"GetCurrentClocksThrottleReasons","throttle_reasons",o); }
#ifndef OLD_DRIVER
R nvmlDeviceGetCurrentClocksEventReasons(dev d,u64 *o){ return num(d,"GetCurrentClocksThrottleReasons","throttle_reasons",o); }
#endif
R nvmlDeviceGetSupportedClocksThrottleReasons(dev d,u64 *o){ PRE("GetSupportedClocksThrottleReasons"); *o=0x1ff; return OK; }
#ifndef OLD_DRIVER
R nvmlDeviceGetSupportedClocksEventReasons(dev d,u64 *o){ return nvmlDeviceGetSupportedClocksThrottleReasons(d,o); }
#endif
R nvmlDeviceGetPcieThroughput(dev d,unsigned c,unsigned *o){ u64 v; R r=num(d,"GetPcieThroughput",c==0?"pcie_tx_kbps":"pcie_rx_kbps",&v); if(!r)*o=v; return r; }
UINT(nvmlDeviceGetCurrPcieLinkGeneration,"pcie_gen") UINT(nvmlDeviceGetCurrPcieLinkWidth,"pcie_width") UINT(nvmlDeviceGetMaxPcieLinkGeneration,"pcie_max_gen") UINT(nvmlDeviceGetMaxPcieLinkWidth,"pcie_max_width") UINT(nvmlDeviceGetPcieReplayCounter,"pcie_replay")
/* ---- static properties ----------------------------------------------- */
R nvmlDeviceGetCudaComputeCapability(dev d,int *a,int *b){ PRE("GetCudaComputeCapability"); const char *v=dget(d,"compute_cap"); if(!v||sscanf(v,"%d.%d",a,b)!=2) return NOSUP; return OK; }
UINT(nvmlDeviceGetNumGpuCores,"cores") UINT(nvmlDeviceGetMemoryBusWidth,"bus_width") UINT(nvmlDeviceGetArchitecture,"arch") UINT(nvmlDeviceGetBrand,"brand") UINT(nvmlDeviceGetBoardId,"board_id")
UINT(nvmlDeviceGetComputeMode,"compute_mode") UINT(nvmlDeviceGetPersistenceMode,"persistence") UINT(nvmlDeviceGetDisplayMode,"display_mode") UINT(nvmlDeviceGetDisplayActive,"display_active")
R nvmlDeviceGetMigMode(dev d,unsigned *c,unsigned *p){ PRE("GetMigMode"); const char *v=dget(d,"mig"); if(!v||!strcmp(v,"n/a")) return NOSUP; *c=*p=atoi(v); return OK; }
R nvmlDeviceIsMigDeviceHandle(dev d,unsigned *o){ PRE("IsMigDeviceHandle"); *o=idx(d)>=64; return OK; }
R nvmlDeviceGetMaxMigDeviceCount(dev d,unsigned *o){ PRE("GetMaxMigDeviceCount"); *o=g(d,"mig",0)?7:0; return OK; }
R nvmlDeviceGetMigDeviceHandleByIndex(dev d,unsigned i,dev *o){ PRE("GetMigDeviceHandleByIndex"); if(i>=8) return INVAL; char s[24];
  dev m=SLOT+64+idx(d)*8+i; if(!has_sec(section(m,s))) return NOTFOUND; *o=m; return OK; }
R nvmlDeviceGetGpuInstanceId(dev d,unsigned *o){ u64 v; R r=num(d,"GetGpuInstanceId","gi",&v); if(!r)*o=v; return r; }
R nvmlDeviceGetComputeInstanceId(dev d,unsigned *o){ PRE("GetComputeInstanceId"); if(idx(d)<64) return INVAL; *o=0; return OK; }
R nvmlDeviceGetEccMode(dev d,unsigned *c,unsigned *p){ PRE("GetEccMode"); const char *v=dget(d,"ecc"); if(!v||!strcmp(v,"n/a")) return NOSUP; *c=*p=atoi(v); return OK; }
R nvmlDeviceGetTotalEccErrors(dev d,unsigned e,unsigned c,u64 *o){ (void)c; return num(d,"GetTotalEccErrors",e==1?"ecc_uncorrected":"ecc_corrected",o); }
R nvmlDeviceGetRetiredPagesPendingStatus(dev d,unsigned *o){ u64 v; R r=num(d,"GetRetiredPagesPendingStatus","retired_pending",&v); if(!r)*o=v; return r; }
R nvmlDeviceGetRemappedRows(dev d,unsigned *a,unsigned *b,unsigned *c,unsigned *e){ PRE("GetRemappedRows"); if(!dget(d,"remapped_rows")) return NOSUP; *a=g(d,"remapped_rows",0); *b=0; *c=0; *e=0; return OK; }
R nvmlDeviceGetNvLinkState(dev d,unsigned l,unsigned *o){ PRE("GetNvLinkState"); if(l>=g(d,"nvlinks",0)) return INVAL; *o=1; return OK; }
R nvmlDeviceGetDriverModel(dev d,unsigned *c,unsigned *p){ PRE("GetDriverModel"); (void)c; (void)p; return NOSUP; } /* Windows only */
R nvmlDeviceGetDriverModel_v2(dev d,unsigned *c,unsigned *p){ return nvmlDeviceGetDriverModel(d,c,p); }
/* ---- processes ------------------------------------------------------- */
static unsigned pidof(const char *v){ return !v?0:!strcmp(v,"self")?(unsigned)getppid():strtoul(v,NULL,0); }
typedef struct { unsigned pid; u64 used; unsigned gi,ci; } proc_t; typedef struct { unsigned pid; u64 ts; unsigned sm,mem,enc,dec; } putil_t;
static R procs(dev d,char type,unsigned *n,proc_t *o){ PRE(type=='C'?"GetComputeRunningProcesses":"GetGraphicsRunningProcesses"); unsigned k=0, cap=*n; char s[32];
  for(int i=0;;i++){ snprintf(s,32,"gpu%d.proc%d",idx(d),i); if(!has_sec(s)) break; const char *t=get(s,"type"); if((t?*t:'C')!=type) continue;
    if(o&&k<cap){ const char *m=get(s,"mem_mib"); o[k].pid=pidof(get(s,"pid")); o[k].used=(m&&strcmp(m,"n/a"))?strtoull(m,NULL,0)*MIB:~0ULL; const char *gi=get(s,"gi"); o[k].gi=gi?(unsigned)atoi(gi):~0u; o[k].ci=gi?0:~0u; } k++; }
  *n=k; return (k>cap)?SMALL:OK; }
#ifndef OLD_DRIVER
R nvmlDeviceGetComputeRunningProcesses_v3(dev d,unsigned *n,proc_t *o){ return procs(d,'C',n,o); }
#endif
#ifndef OLD_DRIVER
R nvmlDeviceGetGraphicsRunningProcesses_v3(dev d,unsigned *n,proc_t *o){ return procs(d,'G',n,o); }
#endif
#ifndef OLD_DRIVER
R nvmlDeviceGetMPSComputeRunningProcesses_v3(dev d,unsigned *n,proc_t *o){ PRE("GetMPSComputeRunningProcesses"); (void)o; *n=0; return OK; }
#endif
R nvmlDeviceGetComputeRunningProcesses_v2(dev d,unsigned *n,proc_t *o){ return procs(d,'C',n,o); }
R nvmlDeviceGetGraphicsRunningProcesses_v2(dev d,unsigned *n,proc_t *o){ return procs(d,'G',n,o); }
R nvmlDeviceGetProcessUtilization(dev d,putil_t *o,unsigned *n,u64 since){ (void)since; PRE("GetProcessUtilization"); unsigned k=0, cap=o?*n:0; char s[32]; struct timespec t; clock_gettime(CLOCK_REALTIME,&t);
  for(int i=0;;i++){ snprintf(s,32,"gpu%d.proc%d",idx(d),i); if(!has_sec(s)) break; if(k<cap){ memset(o+k,0,sizeof *o); o[k].pid=pidof(get(s,"pid")); const char *v=get(s,"sm"); o[k].sm=v?atoi(v):0; o[k].ts=t.tv_sec*1000000ULL+t.tv_nsec/1000; } k++; }
  *n=k; if(!k) return NOTFOUND; return (k>cap)?SMALL:OK; }
/* ---- field values (memory temperature, id 82) ------------------------- */
typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec; int valueType; R nvmlReturn; union { double d; unsigned ui; u64 ull; } value; } field_t;
R nvmlDeviceGetFieldValues(dev d,int n,field_t *f){ PRE("GetFieldValues"); for(int i=0;i<n;i++){ const char *v=dget(d,"temp_mem_c");
  f[i].nvmlReturn=(f[i].fieldId==82&&v)?OK:NOSUP; f[i].valueType=1; f[i].value.ull=0; if(v) f[i].value.ui=strtoul(v,NULL,0); } return OK; }
